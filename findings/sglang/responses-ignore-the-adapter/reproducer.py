"""SGLang answers /v1/responses with the base model, whatever adapter the request names.

    python -m sglang.launch_server --model-path MODEL --port 30000 --dtype float32 \
        --enable-lora --max-lora-rank 16 --lora-target-modules all
    python reproducer.py http://127.0.0.1:30000 ADAPTER_FOLDER

Exit status 1: a response is the base model's, 0: each is the adapter's. The model must have a chat template.
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


def chat(name):
    """Return the text of a chat's answer."""
    body = {"model": name, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "cache_salt": secrets.token_hex(4)}
    return post("/v1/chat/completions", **body)[1]["choices"][0]["message"]["content"]


def response(name):
    """Return the model that a response names, and its text."""
    body = {"model": name, "input": MESSAGES, "max_output_tokens": 12, "temperature": 0, "store": False}
    status, answer = post("/v1/responses", **body, cache_salt=secrets.token_hex(4))
    if status != 200:
        return "refused", answer
    return answer["model"], "".join(part["text"] for one in answer["output"] for part in one.get("content") or ())


SERVER, FOLDER = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Tell me something about the sea and the sky."}]
BASE, ADAPTER = model(), f"adapter-{secrets.token_hex(4)}"
post("/load_lora_adapter", lora_name=ADAPTER, lora_path=FOLDER)
base, right = chat(BASE), chat(f"{BASE}:{ADAPTER}")
print(f"chats: base model {base!r}, adapter {right!r}")
wrong = []
for name in (f"{BASE}:{ADAPTER}", ADAPTER):
    named, text = response(name)
    print(f"response, as it says from {named}: {text!r}")
    wrong += [name] * (named == name and base.startswith(text) and not right.startswith(text))
print("WRONG: the base model answers" if wrong else "no response is the base model's")
sys.exit(bool(wrong))
