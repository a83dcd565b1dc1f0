"""A rejected turn of a streaming session lets the next one run beside the turn that is in flight (SGLang).

    python -m sglang.launch_server --model-path MODEL --port 30000 --dtype float32 --enable-streaming-session
    python reproducer.py http://127.0.0.1:30000

Exit status 1: a turn was accepted beside another, answered wrongly, or ended the server; 0: none of this.
"""

import json
import secrets
import sys
import threading
import time
import urllib.error
import urllib.request

FIRST, LONG, SHORT = list(range(40, 90)), list(range(50, 60)), list(range(60, 70))  # the new tokens of turns


def post(path, **body):
    """Return the server's answer, or the text of its refusal."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.read().decode()
    return json.loads(text) if text[:1] in ('{', '"') else text


def generate(ids, tokens, **more):
    """Return greedy tokens, or the text of a refusal."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    answer = post("/generate", input_ids=ids, sampling_params=sampling, **more)
    return answer["output_ids"] if "output_ids" in answer else answer


def turns():
    """Return what went wrong: with turns 3 and 4 while turn 2 decodes, and with the answer of turn 2."""
    session = {"id": post("/open_session", capacity_of_str_len=100_000, streaming=True)}
    said = generate(FIRST, 4, session_params=session)
    cold = generate(FIRST + said + LONG, 400, cache_salt=secrets.token_hex(4))
    found = []
    second = threading.Thread(target=lambda: found.append(generate(LONG, 400, session_params=session)))
    second.start()
    time.sleep(0.5)
    print("turn 3 beside turn 2:", generate(SHORT, 4, session_params=session), flush=True)
    fourth = generate(SHORT, 4, session_params=session)
    print("turn 4 beside turn 2:", fourth, flush=True)
    beside = second.is_alive()
    second.join()
    print("turn 2 is answered as cold:", found == [cold], flush=True)
    wrong = ["turn 4 was accepted while turn 2 ran"] * (beside and isinstance(fourth, list))
    return wrong + ["turn 2 has a wrong answer"] * (found != [cold])


SERVER = sys.argv[1]
wrong = turns()
time.sleep(5)
try:
    generate(FIRST, 1)
except OSError as problem:
    wrong.append(f"the server does not answer any more: {problem}")
print(f"WRONG: {'; '.join(wrong)}" if wrong else "the turn was refused as the one before it")
sys.exit(bool(wrong))
