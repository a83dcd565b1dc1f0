"""A client that disconnects from an SGLang server ends requests of other clients.

    python -m sglang.launch_server --model-path MODEL --port 30000
    python reproducer.py http://127.0.0.1:30000

Exit status 1: a request of another client was aborted, 0: none.
"""

import json
import socket
import sys
import threading
import time
import urllib.request
from urllib.parse import urlsplit

TOKENS = 300


def body(**more):
    """Return the body of a request with a long answer."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    return json.dumps({"input_ids": list(range(40, 80)), "sampling_params": sampling, **more}).encode()


def ask(name, more, answers):
    """Send a request and keep its answer."""
    request = urllib.request.Request(SERVER + "/generate", body(**more), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        answers[name] = json.load(answer)


def leave(rid):
    """Send a request with this rid, and disconnect when its first bytes arrive."""
    data, place = body(rid=rid, stream=True), urlsplit(SERVER)
    with socket.create_connection((place.hostname, place.port)) as client:
        head = f"POST /generate HTTP/1.1\r\nHost: {place.hostname}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        client.recv(2000)


def aborted(others, leaving):
    """Return the requests of others that did not get their whole answer, because clients left."""
    answers = {}
    threads = [threading.Thread(target=ask, args=(name, more, answers)) for name, more in others.items()]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    for rid in leaving:
        leave(rid)
    for thread in threads:
        thread.join()
    for name, answer in answers.items():
        print(f"{name}: {len(answer['output_ids'])} tokens, {answer['meta_info']['finish_reason']}")
    return [name for name, answer in answers.items() if answer["meta_info"]["finish_reason"]["type"] == "abort"]


SERVER = sys.argv[1]
print("a client with rid user-1 leaves:")
found = aborted({"rid user-10": {"rid": "user-10"}, "rid user-2": {"rid": "user-2"}}, ["user-1"])
print("clients with one hexadecimal digit as rid leave:")
found += aborted({"no rid": {}}, "0123456789abcdef")
print(f"WRONG: aborted: {', '.join(found)}" if found else "nobody else was aborted")
sys.exit(bool(found))
