"""Two turns of one name below the same turn, which is then replaced, end an SGLang server.

    python -m sglang.launch_server --model-path MODEL --port 30000
    python reproducer.py http://127.0.0.1:30000

Exit status 1: the server does not answer any more, 0: it does.
"""

import json
import sys
import time
import urllib.error
import urllib.request

SERVER = sys.argv[1]


def post(path, **body):
    """Return the server's answer."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def turn(**more):
    """Send a turn and print its answer."""
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    answer = post("/generate", input_ids=list(range(40, 60)), sampling_params=sampling, **more)
    print(f"{more}: {answer['output_ids']}", flush=True)


name = post("/open_session", capacity_of_str_len=100_000)
turn(rid=f"{name}-first", session_params={"id": name})
after = {"id": name, "rid": f"{name}-first"}
turn(rid=f"{name}-retry", session_params=after)
turn(rid=f"{name}-retry", session_params=after)
try:
    turn(session_params={**after, "replace": True})
    time.sleep(10)
    turn()
except (OSError, urllib.error.URLError) as problem:
    print(f"WRONG: the server does not answer: {problem}")
    sys.exit(1)
print("the server answers")
