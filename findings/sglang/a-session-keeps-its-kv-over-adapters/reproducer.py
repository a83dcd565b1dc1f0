"""A streaming session of SGLang goes on with the KV of another adapter.

    python -m sglang.launch_server --model-path MODEL --port 30000 --dtype float32 \
        --enable-streaming-session --enable-lora --max-lora-rank 16 --lora-target-modules all
    python reproducer.py http://127.0.0.1:30000 ADAPTER_FOLDER

Exit status 1: the answer of a turn differs from the cold one, 0: all are equal.
"""

import json
import secrets
import sys
import urllib.request

FIRST, SECOND = list(range(40, 90)), list(range(60, 80))  # the new tokens of two turns


def post(path, **body):
    """Return the server's answer."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read().decode()
    return json.loads(text) if text[:1] in ('{', '"') else text


def generate(ids, **more):
    """Return four greedy tokens and the number of cached tokens."""
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    answer = post("/generate", input_ids=ids, sampling_params=sampling, **more)
    return answer["output_ids"], answer["meta_info"]["cached_tokens"]


def cold(ids, **more):
    """Return the answer under a salt that nothing else has."""
    return generate(ids, cache_salt=secrets.token_hex(8), **more)[0]


def second_turn_is_right(*, streaming):
    """Return whether a turn with the adapter is answered right in a session that began with the base model."""
    session = {"id": post("/open_session", capacity_of_str_len=100_000, streaming=streaming)}
    answer, _ = generate(FIRST, rid=f"{session['id']}-1", session_params=session)
    before = {} if streaming else {"rid": f"{session['id']}-1"}
    turn, cached = generate(SECOND, session_params=session | before, lora_path=ADAPTER)
    post("/close_session", session_id=session["id"])
    held = FIRST + answer + SECOND
    right = cold(held, lora_path=ADAPTER)
    print(f"{'streaming' if streaming else 'other'} session: {turn}, {cached} of {len(held)} tokens cached")
    print(f"  cold with the adapter {right}, with the base model {cold(held)}")
    return turn == right


SERVER, FOLDER = sys.argv[1:]
ADAPTER = f"adapter-{secrets.token_hex(4)}"
post("/load_lora_adapter", lora_name=ADAPTER, lora_path=FOLDER)
results = [second_turn_is_right(streaming=False), second_turn_is_right(streaming=True)]
print("WRONG" if not all(results) else "all turns are right")
sys.exit(not all(results))
