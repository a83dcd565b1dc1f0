"""SGLang serves requests to /v1/messages without their cache salt: tenants share KV.

    python -m sglang.launch_server --model-path MODEL --port 30000 --enable-cache-report
    python reproducer.py http://127.0.0.1:30000

Exit status 1: a request with a new salt has cached tokens at /v1/messages, 0: it has none, or is refused. The model
must have a chat template.
"""

import json
import secrets
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


def cached(route, salt):
    """Return the number of cached tokens of a request to this route, or the refusal."""
    body = {"model": NAME, "messages": MESSAGES, "max_tokens": 2, "temperature": 0, "cache_salt": salt}
    status, answer = post(route, **body)
    if status != 200:
        return answer
    usage = answer["usage"]
    if route == "/v1/messages":
        return usage.get("cache_read_input_tokens") or 0
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


SERVER = sys.argv[1]
NAME, TEXT = model(), f"{secrets.token_hex(8)}: tell me something about the sea and the sky. " * 4
MESSAGES = [{"role": "user", "content": TEXT}]
wrong = []
for route in ("/v1/chat/completions", "/v1/messages"):
    counts = [cached(route, secrets.token_hex(8)) for _ in range(3)]
    print(f"{route}: the same prompt under three salts: {counts} cached tokens")
    wrong += [route] * any(isinstance(count, int) and count > 0 for count in counts)
print(f"WRONG: the salt is ignored: {', '.join(wrong)}" if wrong else "no salt is ignored")
sys.exit(bool(wrong))
