"""SGLang answers a chat or a completion that names an adapter as /v1/models does with the base model.

    python -m sglang.launch_server --model-path MODEL --port 30000 --dtype float32 \
        --enable-lora --max-lora-rank 16 --lora-target-modules all
    python reproducer.py http://127.0.0.1:30000 ADAPTER_FOLDER

Exit status 1: an answer is the base model's, 0: each is the adapter's or refused. The model must have a chat template.
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


def models():
    """Return the names of all models, first the base model."""
    with urllib.request.urlopen(SERVER + "/v1/models", timeout=60) as answer:
        return [one["id"] for one in json.load(answer)["data"]]


def chat(name):
    """Return the text of a chat's answer, or the refusal."""
    body = {"messages": [{"role": "user", "content": "Tell me something about the sea and the sky."}]}
    status, answer = post("/v1/chat/completions", model=name, **body, **SAMPLING, cache_salt=secrets.token_hex(4))
    return answer["choices"][0]["message"]["content"] if status == 200 else f"refused: {answer}"


def completion(name):
    """Return the text of a completion, or the refusal."""
    body = {"prompt": list(range(40, 90)), "cache_salt": secrets.token_hex(4)}
    status, answer = post("/v1/completions", model=name, **body, **SAMPLING)
    return answer["choices"][0]["text"] if status == 200 else f"refused: {answer}"


SERVER, FOLDER = sys.argv[1:]
SAMPLING = {"max_tokens": 12, "temperature": 0}
ADAPTER = f"adapter-{secrets.token_hex(4)}"
post("/load_lora_adapter", lora_name=ADAPTER, lora_path=FOLDER)
BASE, listed = models()[0], ADAPTER in models()
print(f"/v1/models lists the adapter: {listed}")
wrong = []
for ask in (chat, completion):
    base, right, found = ask(BASE), ask(f"{BASE}:{ADAPTER}"), ask(ADAPTER)
    print(f"{ask.__name__}: base model {base!r}, BASE:ADAPTER {right!r}, ADAPTER {found!r}")
    wrong += [ask.__name__] * (found == base != right)
print(f"WRONG: the base model answers: {', '.join(wrong)}" if wrong else "no answer is the base model's")
sys.exit(bool(wrong))
