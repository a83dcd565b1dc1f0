"""SGLang serves requests to /v1/responses without their priority.

    python -m sglang.launch_server --model-path MODEL --port 30000 --enable-priority-scheduling
    python reproducer.py http://127.0.0.1:30000

A priority outside of the range of 64 bits shows who reads the field: who does, refuses it. Exit status 1: a route
answers a request with such a priority, 0: each refuses it. The model must have a chat template.
"""

import json
import sys
import urllib.error
import urllib.request


def post(path, **body):
    """Return the status and the answer of the server."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def model():
    """Return the name of the base model."""
    with urllib.request.urlopen(SERVER + "/v1/models", timeout=60) as answer:
        return json.load(answer)["data"][0]["id"]


SERVER = sys.argv[1]
MESSAGES = [{"role": "user", "content": "Tell me something about the sea and the sky."}]
ROUTES = {
    "/generate": {"text": "Hello", "sampling_params": {"max_new_tokens": 2}},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": MESSAGES, "max_output_tokens": 2, "store": False},
}
name, wrong = model(), []
for route, body in ROUTES.items():
    status, _ = post(route, **({} if route == "/generate" else {"model": name}), **body, priority=2**63)
    print(f"{route} with priority 2**63: HTTP {status}")
    wrong += [route] * (status == 200)
print(f"WRONG: the priority is not read: {', '.join(wrong)}" if wrong else "every route reads the priority")
sys.exit(bool(wrong))
