"""A turn that goes on from a refused one is answered by SGLang as if its session had held one token.

    python -m sglang.launch_server --model-path MODEL --port 30000 --dtype float32 --max-total-tokens 1500
    python reproducer.py http://127.0.0.1:30000

Exit status 1: such a turn is answered without the session, 0: it is refused, or answered over the whole session.
"""

import json
import random
import secrets
import sys
import urllib.error
import urllib.request


def post(path, **body):
    """Return the server's answer, or the text of its refusal."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.read().decode()


def generate(ids, **more):
    """Return the number of prompt tokens and the answer, or the text of a refusal."""
    sampling = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    answer = post("/generate", input_ids=ids, sampling_params=sampling, **more)
    return answer if isinstance(answer, str) else (answer["meta_info"]["prompt_tokens"], answer["output_ids"])


SERVER = sys.argv[1]
with urllib.request.urlopen(SERVER + "/server_info", timeout=60) as page:
    most = json.load(page)["max_req_input_len"]
first = [random.randrange(40, 120) for _ in range(most - 100)]
name = post("/open_session", capacity_of_str_len=100_000)
held = generate(first, rid=f"{name}-1", session_params={"id": name})
print(f"turn 1: {held}")
print("turn 2:", generate([50] * 200, rid=f"{name}-2", session_params={"id": name, "rid": f"{name}-1"}))
third = generate(list(range(60, 80)), rid=f"{name}-3", session_params={"id": name, "rid": f"{name}-2"})
print("turn 3, after turn 2:", third)
print("cold, token 0 and the tokens of turn 3:", generate([0, *range(60, 80)], cache_salt=secrets.token_hex(4)))
wrong = not isinstance(third, str) and third[0] < len(first)
print("WRONG: turn 3 is answered without the session" if wrong else "turn 3 is refused, or sees the session")
sys.exit(wrong)
