"""A stand-in for an OpenAI-compatible server, for unit tests of the client only: no verdict on an engine rests on it.

Its answers are a function of model and prompt, and every request is recorded, so that a test can check what was sent
and how often. `ServerBehaviour` scripts what it offers, how slow it is and how it fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.fake_reply import (
    BARE_METRICS,
    BLOCK,
    METRICS,
    MODEL,
    VERSION,
    Counts,
    Fault,
    Reply,
    ServerBehaviour,
    answer,
    of_endpoint,
    plain_body,
    prompt_scores,
    rendered,
    vector,
)

from coldproof.adapters.server.completions import RANK_HEADER
from coldproof.adapters.server.vllm_metrics import GAUGES_PATH, METRICS_PATH

__all__ = [
    "BARE_METRICS",
    "BLOCK",
    "METRICS",
    "MODEL",
    "VERSION",
    "Counts",
    "FakeServer",
    "Fault",
    "ServerBehaviour",
    "answer",
    "prompt_scores",
    "rendered",
    "serving",
]


LARGEST = 2**63 - 1  # the highest priority
FIRST_CORRUPTED = 2  # the number of the first hit that is wrong, if not every one is


@dataclass(slots=True)
class ReceivedRequest:
    """One request as it arrived."""

    line: str
    authorization: str | None
    body: dict[str, Any]
    rank: str | None = None


@dataclass
class FakeServer:
    """A running stand-in: its address, its behaviour and the requests that it received."""

    behaviour: ServerBehaviour
    url: str = ""
    seen: list[ReceivedRequest] = field(default_factory=list)
    cached: set[tuple[str, str | None, tuple[int, ...]]] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)
    adapters: dict[str, str] = field(default_factory=dict)  # name -> content
    dropped: int = 0
    hits: itertools.count[int] = field(default_factory=itertools.count)
    corrupted: int = 0  # answers on a hit that are wrong, if the script says so
    client_disconnected: threading.Event = field(
        default_factory=threading.Event
    )  # a client left in the middle of an answer

    def received(self, line: str) -> list[ReceivedRequest]:
        """Return the requests with this request line, for example `POST /v1/completions`."""
        return [request for request in self.seen if request.line == line]


@contextlib.contextmanager
def serving(behaviour: ServerBehaviour | None = None, *, port: int = 0) -> Iterator[FakeServer]:
    """Run a stand-in on 127.0.0.1 for the duration of the block, on a free port unless one is given."""
    fake = FakeServer(behaviour or ServerBehaviour())
    connections: list[socket.socket] = []

    class Handler(_Handler):
        server_state = fake

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def get_request(self) -> tuple[socket.socket, Any]:
            """Record the connection, which ends with the server: a client may leave it open for its next request."""
            connection, address = super().get_request()
            connections.append(connection)
            return connection, address

        def handle_error(self, *_: object) -> None:
            """Ignore the error: a client that disconnects is part of the script."""

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
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server_state: FakeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each response waits 40 ms for an acknowledgement

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        fake, behaviour = self.note({})
        pages = {
            "/v1/models": behaviour.models,
            "/version": behaviour.version and json.dumps({"version": behaviour.version}),
            METRICS_PATH: behaviour.metrics,
            GAUGES_PATH: behaviour.gauges,
            "/health": "",
        }
        if fake.dropped < behaviour.dropped_gets:
            fake.dropped += 1
            self.close_connection = True
        elif behaviour.key is not None and self.headers["Authorization"] != f"Bearer {behaviour.key}":
            self.say(401, '{"error": "Unauthorized"}')
        elif behaviour.ended and self.path == "/health":
            self.say(503, "")
        else:
            page = behaviour.bodies.get(self.path, pages.get(self.path))
            self.say(404, "Not Found") if page is None else self.say(200, page)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        body: dict[str, Any] = json.loads(raw) if raw else {}
        _, behaviour = self.note(body)
        match self.path.partition("?")[0]:
            case path if path in behaviour.bodies:
                self.say(200, behaviour.bodies[path])
            case "/v1/completions":
                self.generate(body, tuple(body["prompt"]))
            case "/v1/chat/completions" if behaviour.chats:
                self.generate(body, rendered(body["messages"]))
            case path if path in behaviour.endpoints:
                self.at_endpoint(path, body)
            case path if path in behaviour.pools:
                self.pool(path, body, pooled_prompt(body))
            case "/tokenize" if behaviour.chats and "prompt" in body:
                ids = [*body["prompt"].encode()]
                self.say(200, json.dumps({"tokens": ids * (2 if behaviour.wordy else 1)}))
            case "/tokenize" if behaviour.chats:
                self.say(200, json.dumps({"tokens": rendered(body["messages"])}))
            case "/reset_prefix_cache" if behaviour.reset is not None:
                if not behaviour.keeps:
                    self.server_state.cached.clear()
                self.say(200, behaviour.reset)
            case "/v1/load_lora_adapter":
                self.server_state.adapters[body["lora_name"]] = content_of(body["lora_path"])
                self.say(*(behaviour.in_place if body.get("load_inplace") else behaviour.lora))
            case "/v1/unload_lora_adapter" if behaviour.lora[0] == 200:
                self.say(200, "Success")
            case _:
                self.say(404, '{"detail": "Not Found"}')

    def note(self, body: dict[str, Any]) -> tuple[FakeServer, ServerBehaviour]:
        seen = ReceivedRequest(
            f"{self.command} {self.path}", self.headers["Authorization"], body, self.headers[RANK_HEADER]
        )
        self.server_state.seen.append(seen)
        return self.server_state, self.server_state.behaviour

    def say(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def generate(self, body: dict[str, Any], prompt: tuple[int, ...]) -> None:
        """Send one answer, streamed or whole, as far as the script allows."""
        behaviour = self.server_state.behaviour
        if behaviour.fault is Fault.REFUSES or (not behaviour.token_prompts and "prompt" in body):
            return self.say(400, '{"error": {"message": "prompt must be text"}}')
        for name in behaviour.refuses:
            if name in body:
                return self.say(400, json.dumps({"error": {"message": f"{name} is off"}}))
        if body.get("priority", 0) > LARGEST and "priority" not in behaviour.ignores:
            return self.say(400, '{"error": {"message": "priority is too large"}}')
        if behaviour.fault is Fault.SILENT:
            self.server_state.closing.wait()
        if behaviour.fault in (Fault.SILENT, Fault.SPEECHLESS):
            self.close_connection = True
            return None
        if "stream" not in body:
            return self.say(200, json.dumps(self.reply(body, prompt).whole()))
        try:
            self.stream(body, prompt)
        except OSError:  # a disconnecting client leaves unread bytes, which resets the connection
            self.server_state.client_disconnected.set()
            self.close_connection = True
        return None

    def at_endpoint(self, path: str, body: dict[str, Any]) -> None:
        """Send one answer of an endpoint that does not stream."""
        behaviour = self.server_state.behaviour
        heard = {name: value for name, value in plain_body(path, body).items() if (path, name) not in behaviour.drops}
        if heard.get("priority", 0) > LARGEST:
            return self.say(400, '{"error": {"message": "priority is too large"}}')
        prompt = tuple(heard["prompt"]) if "prompt" in heard else rendered(heard["messages"])
        return self.say(200, json.dumps(of_endpoint(path, self.reply(heard, prompt))))

    def pool(self, path: str, body: dict[str, Any], prompt: tuple[int, ...]) -> None:
        """Send the vectors of a prompt. Where answers are wrong on hits, cached tokens get no vectors."""
        fake = self.server_state
        who, wrong = fake.adapters.get(body["model"], body["model"]), fake.behaviour.corrupt == "tokens"
        hit = self.hit(who, body, prompt) if wrong else 0
        if path == "/pooling":
            rows = [vector(who, prompt[: end + 1]) for end in range(hit, len(prompt))]
            return self.say(200, json.dumps({"data": [{"data": rows}]}))
        found = vector(f"{who}{' stale' if hit else ''}", prompt)
        if path in ("/score", "/rerank"):
            entries = {"data": [{"score": found[0]}], "results": [{"relevance_score": found[0]}]}
            return self.say(200, json.dumps(entries))
        return self.say(200, json.dumps({"data": [{"embedding" if path == "/v1/embeddings" else "probs": found}]}))

    def stream(self, body: dict[str, Any], prompt: tuple[int, ...]) -> None:
        """Send the events, each in a chunk. The fault happens after the first token."""
        behaviour = self.server_state.behaviour
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        self.close_connection = behaviour.one_by_one
        head += b"Connection: close\r\n\r\n" if behaviour.one_by_one else b"\r\n"
        if behaviour.at_once:
            events = [chunk(line) for line in self.reply(body, prompt).events() if line is not None]
            self.wfile.write(head + b"".join(events) + b"0\r\n\r\n")
            return
        if not behaviour.late_headers:
            self.wfile.write(head)
        time.sleep(behaviour.delay)  # whatever is changed meanwhile is changed before the answer begins
        behaviour.before()
        if behaviour.holds_after == 0:
            self.hold()
            return
        if behaviour.late_headers:
            self.wfile.write(head)
        for number, line in enumerate(self.reply(body, prompt).events(), start=1):
            if line is None:  # the fault of a server that does not end its stream
                if behaviour.fault is Fault.STALLS:
                    self.server_state.closing.wait()
                self.close_connection = True
                return
            self.wfile.write(chunk(line))
            behaviour.after(number)
            if behaviour.holds_after == number:
                self.hold()
                return
            time.sleep(behaviour.pace)
        self.wfile.write(b"0\r\n\r\n")

    def hold(self) -> None:
        """Send nothing more until the client disconnects, which raises an OSError, or until the server is closed."""
        self.close_connection = True
        while not self.server_state.closing.is_set():
            if select.select([self.connection], [], [], 0.02)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError

    def reply(self, body: dict[str, Any], prompt: tuple[int, ...]) -> Reply:
        """Return the reply of the content that the model's name stands for now."""
        fake = self.server_state
        who = fake.adapters.get(body["model"], body["model"])
        heard = {name: value for name, value in body.items() if name not in fake.behaviour.ignores}
        hit = self.hit(who, body, prompt)
        corrupted = hit > 0 and next(fake.hits) % fake.behaviour.every == min(FIRST_CORRUPTED, fake.behaviour.every - 1)
        fake.corrupted += corrupted and bool(fake.behaviour.corrupt)
        return Reply(fake.behaviour, who, heard, prompt, hit, corrupted=corrupted)

    def hit(self, who: str, body: dict[str, Any], prompt: tuple[int, ...]) -> int:
        """Return the number of tokens of whole blocks that were sent before to the same content under the same salt."""
        behaviour, cached = self.server_state.behaviour, self.server_state.cached
        salt = body.get("cache_salt") if behaviour.salts else None
        keys = [(who, salt, prompt[:end]) for end in range(BLOCK, len(prompt), BLOCK)]
        found = [len(key[2]) for key in keys if key in cached]
        cached.update(keys)
        return max(found, default=0) if behaviour.caches else 0


def content_of(path: str) -> str:
    """Return what identifies an adapter: a digest of its file, or the path if there is no file."""
    file = Path(path) / "adapter_model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else path


def pooled_prompt(body: dict[str, Any]) -> tuple[int, ...]:
    """Return the tokens of a prompt to pool: ids, two texts one after the other, or a document with a query."""
    if "input" in body:
        return tuple(body["input"])
    if body.get("text_1") == "!":
        return tuple(body["text_2"].encode())
    return tuple("".join([body.get("text_1") or body["query"], body.get("text_2") or body["documents"][0]]).encode())


def chunk(line: str) -> bytes:
    """Return one event as a chunk of the transfer encoding."""
    content = f"data: {line}\n\n".encode()
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"
