"""A turn that replaces all turns of its session ends an SGLang server.

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


def generate(**session):
    """Send a turn and print its answer."""
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    answer = post("/generate", input_ids=list(range(40, 60)), sampling_params=sampling, session_params=session)
    print(f"{session}: {answer['output_ids']}", flush=True)


name = post("/open_session", capacity_of_str_len=100_000)
generate(id=name)
try:
    generate(id=name, replace=True)
    time.sleep(10)
    post("/generate", input_ids=[40, 41], sampling_params={"max_new_tokens": 1})
except (OSError, urllib.error.URLError) as problem:
    print(f"WRONG: the server does not answer: {problem}")
    sys.exit(1)
print("the server answers")
