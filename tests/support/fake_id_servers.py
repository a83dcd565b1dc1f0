"""Stand-ins for LMDeploy's api_server and for trtllm-serve: scripts of their documented answers, for tests of the wire.

No verdict on an engine rests on them. Fields and answers are those of LMDeploy 0.16.0 (serve/openai/protocol.py and
chat_completions/serving.py) and of TensorRT-LLM 1.3 (serve/openai_protocol.py and postprocess_handlers.py).
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.fake_reply import BLOCK, answer
from support.fake_server import content_of

MODEL, LONGEST = "served", 2048
GAUGES = ("num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc")  # of LMDeploy's /metrics
# Others are refused: the class of a request forbids them.
TRTLLM_FIELDS = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "seed",
    "ignore_eos",
    "add_special_tokens",
    "detokenize",
    "stream",
    "stream_options",
    "n",
    "stop",
    "response_format",
    "logprobs",
    "lora_request",
}


@dataclass
class IdServer:
    """A running stand-in, and the bodies that it got. `wrong`: every answer on a hit is another one."""

    engine: str
    caches: bool = True
    wrong: bool = False
    refuses: tuple[str, ...] = ()  # fields that are answered with 400
    load: tuple[float, float, float] | None = (0, 0, 0)  # what /metrics reports; None: there is none
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    cached: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def path(self) -> str:
        """The route of generations."""
        return "/v1/chat/completions" if self.engine == "lmdeploy" else "/v1/completions"

    def refusal(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """Why a body is refused, as the engine checks it."""
        refused = [name for name in self.refuses if name in body]
        if refused:
            return 400, f"{refused[0]} is off"
        if len(body.get("input_ids", body.get("prompt", ()))) + body["max_tokens"] > LONGEST:
            return 400, f"the request is longer than {LONGEST} tokens"
        if self.engine == "lmdeploy":
            if body["messages"] and "input_ids" in body:
                return 400, "input_ids cannot be used when messages is non-empty. messages takes priority."
            return None if body["model"] == MODEL else (404, f"The model {body['model']!r} does not exist.")
        unknown = sorted(body.keys() - TRTLLM_FIELDS)
        if unknown:
            return 400, f"{unknown[0]}: Extra inputs are not permitted"
        folder = body.get("lora_request", {}).get("lora_path", "/adapters")
        there = folder.startswith("/adapters") or Path(folder, "adapter_config.json").is_file()
        return None if there else (400, f"{folder}: no such adapter")

    def hit(self, adapter: object, prompt: tuple[int, ...]) -> int:
        """Tokens of whole blocks that were computed before with the same adapter id."""
        keys = [(adapter, prompt[:end]) for end in range(BLOCK, len(prompt), BLOCK)]
        found = max((len(key[1]) for key in keys if key in self.cached), default=0)
        self.cached.update(keys if self.caches else ())
        return found

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """All that is said of one request."""
        prompt = tuple(body["input_ids"] if self.engine == "lmdeploy" else body["prompt"])
        adapter = body.get("lora_request") or {}
        hit = self.hit(adapter.get("lora_int_id"), prompt)
        who = content_of(adapter.get("lora_path", "")) + (" stale" if self.wrong and hit else "")
        for index in range(body.get("n", 1)):
            tokens = answer(f"{who}{index or ''}", prompt, body["max_tokens"])
            text = "".join(map(chr, tokens))
            ends = [(text.index(stop), len(stop)) for stop in body.get("stop", ()) if stop in text]
            said, stopped = min(ends, default=(len(text), 0))
            tokens = tokens[: said + stopped]
            for i, token in enumerate(tokens):
                reason = ("stop" if ends else "length") if i == len(tokens) - 1 else None
                part = chr(token) if i < said else ""  # a stop string is left out
                choice = lmdeploy_choice(token, part, body) if self.engine == "lmdeploy" else trtllm_choice(token, body)
                yield {"choices": [{"index": index, "finish_reason": reason, **choice}]}
        yield {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": hit}}}


def lmdeploy_choice(token: int, text: str, body: dict[str, Any]) -> dict[str, Any]:
    """A token in a chat. The best candidates leave out the one that was chosen."""
    choice: dict[str, Any] = {"delta": {"role": "assistant", "content": text}}
    if body.get("return_token_ids"):
        choice["output_ids"] = [token]
    if body.get("logprobs"):
        others = [{"token": "x", "logprob": -2.0}]
        choice["logprobs"] = {"content": [{"token": chr(token), "logprob": -0.5, "top_logprobs": others}]}
    return choice


def lmdeploy_metrics(load: tuple[float, ...]) -> str:
    """The gauges, each with its labels."""
    labels = '{model_name="served",engine="0"}'
    rows = zip(GAUGES, load, strict=True)
    return "".join(f"# TYPE lmdeploy:{name} gauge\nlmdeploy:{name}{labels} {value}\n" for name, value in rows)


def trtllm_choice(token: int, body: dict[str, Any]) -> dict[str, Any]:
    """A token of a completion: its text, or its id if it is not to be made into text."""
    plain = body.get("detokenize", True)
    choice: dict[str, Any] = {"text": chr(token) if plain else "", "token_ids": None if plain else [token]}
    if body.get("logprobs"):
        top = [{chr(token): -0.5, "x": -2.0}]
        choice["logprobs"] = {"tokens": [chr(token)], "token_logprobs": [-0.5], "top_logprobs": top}
    return choice


@contextlib.contextmanager
def serving(engine: str, **changes: Any) -> Iterator[IdServer]:
    """A stand-in on a free port of this machine for as long as the block runs."""
    fake = IdServer(engine, **changes)

    class Handler(_Handler):
        state = fake

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: IdServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Nothing to say."""

    def do_GET(self) -> None:
        fake = self.state
        lmdeploy = fake.engine == "lmdeploy"
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": MODEL, "root": MODEL if lmdeploy else None}]},
            "/openapi.json": {"paths": {"/update_weights": {}, "/sleep": {}, "/wakeup": {}}},
            "/version": None if lmdeploy else {"version": "1.3.0"},
            "/metrics": None if fake.load is None else lmdeploy_metrics(fake.load) if lmdeploy else [],
        }
        page = pages.get(self.path)
        self.say(404, {"detail": "Not Found"}) if page is None else self.say(200, page)

    def do_POST(self) -> None:
        fake = self.state
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path != fake.path:
            return self.say(404, {"detail": "Not Found"})
        body: dict[str, Any] = json.loads(raw)
        fake.bodies.append(body)
        refusal = fake.refusal(body)
        if refusal is not None:
            return self.say(refusal[0], {"message": refusal[1]})
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        with contextlib.suppress(OSError):  # a client that disconnects is part of the script
            for event in fake.events(body):
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        return None

    def say(self, status: int, page: Any) -> None:
        content = (page if isinstance(page, str) else json.dumps(page)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
