"""SGLang does not flush its cache after a pause that retracts, if the flush has a timeout.

    python -m sglang.launch_server --model-path MODEL --port 30000
    python reproducer.py http://127.0.0.1:30000

Exit status 1: the flush with a timeout fails where the one without succeeds, 0: both succeed, 2: it was not tested.
"""

import json
import sys
import threading
import time
import urllib.error
import urllib.request


def post(path, **body):
    """Return the status and the answer of the server."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def long_answer():
    """Send a request that runs when the pause begins."""
    sampling = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    finished.append(post("/generate", input_ids=list(range(40, 90)), sampling_params=sampling)[0])


SERVER, finished = sys.argv[1], []
running = threading.Thread(target=long_answer)
running.start()
time.sleep(0.5)
post("/pause_generation", mode="retract")
in_flight = not finished
results = {path: post(path) for path in ("/flush_cache?timeout=3", "/flush_cache")}
post("/continue_generation")
running.join()
for path, (status, text) in results.items():
    print(f"{path} during the pause: HTTP {status}: {text.splitlines()[0]}")
print(f"the paused request ended with HTTP {finished[0]}")
if not in_flight or results["/flush_cache"][0] != 200:
    print("not tested: nothing ran when the pause began, or no flush succeeds")
    sys.exit(2)
wrong = results["/flush_cache?timeout=3"][0] != 200
print("WRONG: a flush with a timeout waits for the paused request" if wrong else "both flush")
sys.exit(wrong)
