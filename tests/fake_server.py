"""A stand-in for an OpenAI-compatible server, for unit tests of the wire only: no verdict on an engine rests on it.

Its answers are a function of model and prompt, and every request is written down, so that a test can say what was
sent and how often. What it offers and how it fails is scripted by `Manners`.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL, VERSION, BLOCK = "tiny", "9.9", 16
METRICS = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",enable_prefix_caching="True"} 1
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 40
vllm:prefix_cache_queries_total{engine="1"} 2
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0"} 1700000000
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0
"""
BARE_METRICS = "# TYPE http_requests_total counter\nhttp_requests_total 3\n"


class Fault(enum.Enum):
    """How a generation goes wrong."""

    NONE = "answers"
    SILENT = "accepts the request and never says a word"
    STALLS = "falls silent after the first token"
    BREAKS = "closes the socket after the first token"
    ENDS_EARLY = "ends the stream in good order but without [DONE]"
    REFUSES = "HTTP 400"
    ERROR_EVENT = "an error event in the middle of the stream"
    GARBLED = "a data line that is no JSON"
    SPEECHLESS = "closes the socket instead of any response"


class Counts(enum.Enum):
    """How cached tokens are told."""

    ALWAYS = "a number, 0 for a miss"
    NULL_ON_MISS = "null for a miss"
    NEVER = "not at all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """What a server offers. The default is a vLLM that offers everything; None and False take something away."""

    fault: Fault = Fault.NONE
    counts: Counts = Counts.ALWAYS
    token_ids: bool = True
    token_prompts: bool = True
    logprobs: bool = True
    salts: bool = True
    key: str | None = None
    version: str | None = VERSION
    metrics: str | None = METRICS
    models: str | None = json.dumps({"data": [{"id": MODEL, "root": "/models/tiny", "max_model_len": 2048}]})
    reset: str | None = '{"success": true}'
    lora: tuple[int, str] = (200, "Success")
    in_place: tuple[int, str] = (200, "Success")
    dropped_gets: int = 0


@dataclass(slots=True)
class Seen:
    """One request as it arrived."""

    line: str
    authorization: str | None
    body: dict[str, Any]


@dataclass
class FakeServer:
    """A running stand-in: where it is, how it behaves, and what it was asked."""

    manners: Manners
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    cached: set[tuple[str, str | None, tuple[int, ...]]] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)
    dropped: int = 0

    def asked(self, line: str) -> list[Seen]:
        """The requests with this request line, `POST /v1/completions` for one."""
        return [request for request in self.seen if request.line == line]


def answer(model: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """The tokens that a cold start answers, which are also what the cache must not change."""
    digest = hashlib.sha256(f"{model} {prompt}".encode()).digest()
    return [32 + byte % 95 for byte in digest[:count]]


@contextlib.contextmanager
def serving(manners: Manners | None = None, *, port: int = 0) -> Iterator[FakeServer]:
    """A stand-in on 127.0.0.1, on a free port unless one is given, for as long as the block runs."""
    fake = FakeServer(manners or Manners())

    class Handler(_Handler):
        server_state = fake

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """A client that gave up is part of the script."""

    with Server(("127.0.0.1", port), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fake
        finally:
            fake.closing.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_state: FakeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each response waits 40 ms for an acknowledgement

    def log_message(self, *_: object) -> None:
        """Nothing to say."""

    def do_GET(self) -> None:
        fake, manners = self.note({})
        pages = {
            "/v1/models": manners.models,
            "/version": manners.version and json.dumps({"version": manners.version}),
            "/metrics": manners.metrics,
            "/health": "",
        }
        if fake.dropped < manners.dropped_gets:
            fake.dropped += 1
            self.close_connection = True
        elif manners.key is not None and self.headers["Authorization"] != f"Bearer {manners.key}":
            self.say(401, '{"error": "Unauthorized"}')
        else:
            page = pages.get(self.path)
            self.say(404, "Not Found") if page is None else self.say(200, page)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        body: dict[str, Any] = json.loads(raw) if raw else {}
        _, manners = self.note(body)
        match self.path:
            case "/v1/completions":
                self.complete(body)
            case "/reset_prefix_cache" if manners.reset is not None:
                self.server_state.cached.clear()
                self.say(200, manners.reset)
            case "/v1/load_lora_adapter":
                self.say(*(manners.in_place if body.get("load_inplace") else manners.lora))
            case "/v1/unload_lora_adapter" if manners.lora[0] == 200:
                self.say(200, "Success")
            case _:
                self.say(404, '{"detail": "Not Found"}')

    def note(self, body: dict[str, Any]) -> tuple[FakeServer, Manners]:
        seen = Seen(f"{self.command} {self.path}", self.headers["Authorization"], body)
        self.server_state.seen.append(seen)
        return self.server_state, self.server_state.manners

    def say(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def complete(self, body: dict[str, Any]) -> None:
        """One streamed completion, as far as the script lets it come."""
        manners = self.server_state.manners
        if manners.fault is Fault.REFUSES or not manners.token_prompts:
            return self.say(400, '{"error": {"message": "prompt must be text"}}')
        if body.get("logprobs") and not manners.logprobs:
            return self.say(400, '{"error": {"message": "logprobs are off"}}')
        if manners.fault is Fault.SILENT:
            self.server_state.closing.wait()
        if manners.fault in (Fault.SILENT, Fault.SPEECHLESS):
            self.close_connection = True
            return None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in self.script(body):
            self.event(line)
        if not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")
        return None

    def script(self, body: dict[str, Any]) -> Iterator[str]:
        """The stream's data lines; the fault strikes after the first token."""
        fault, prompt = self.server_state.manners.fault, tuple(body["prompt"])
        tokens = answer(body["model"], prompt, body["max_tokens"])
        for i, token in enumerate(tokens):
            yield json.dumps({"choices": [self.choice(body, token, last=i == len(tokens) - 1)]})
            match fault:
                case Fault.STALLS | Fault.BREAKS:
                    if fault is Fault.STALLS:
                        self.server_state.closing.wait()
                    self.close_connection = True
                    return
                case Fault.ERROR_EVENT:
                    yield '{"error": {"message": "EngineCore encountered an issue"}}'
                case Fault.GARBLED:
                    yield "<html>Bad Gateway</html>"
        yield json.dumps({"choices": [], "usage": self.usage(body, prompt)})
        if fault is not Fault.ENDS_EARLY:
            yield "[DONE]"

    def choice(self, body: dict[str, Any], token: int, *, last: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": chr(token), "finish_reason": "length" if last else None}
        if self.server_state.manners.token_ids:
            choice["token_ids"] = [token]
        if body.get("logprobs"):
            top = {f"token_id:{token}": -0.5, "token_id:1": -2.0}
            choice["logprobs"] = {"token_logprobs": [-0.5], "top_logprobs": [top]}
        return choice

    def usage(self, body: dict[str, Any], prompt: tuple[int, ...]) -> dict[str, Any]:
        """Counts: whole blocks of a prompt that was asked before under the same model and salt."""
        manners, cached = self.server_state.manners, self.server_state.cached
        key = (body["model"], body.get("cache_salt") if manners.salts else None, prompt)
        hit = (len(prompt) - 1) // BLOCK * BLOCK if key in cached else 0
        cached.add(key)
        if manners.counts is Counts.NEVER:
            return {"prompt_tokens": len(prompt)}
        if manners.counts is Counts.NULL_ON_MISS and hit == 0:
            return {"prompt_tokens": len(prompt), "prompt_tokens_details": None}
        return {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": hit}}

    def event(self, data: str) -> None:
        content = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()
