"""A stand-in for an OpenAI-compatible server, for unit tests of the wire only: no verdict on an engine rests on it.

Its answers are a function of model and prompt, and every request is written down, so that a test can say what was
sent and how often. What it offers, how slowly, and how it fails is scripted by `Manners`.
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
    Manners,
    Reply,
    answer,
    of_door,
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
    "Manners",
    "answer",
    "prompt_scores",
    "rendered",
    "serving",
]


LARGEST = 2**63 - 1  # the highest priority
FIRST_SPOILT = 2  # the number of the first hit that is wrong, if not every one is


@dataclass(slots=True)
class Seen:
    """One request as it arrived."""

    line: str
    authorization: str | None
    body: dict[str, Any]
    rank: str | None = None


@dataclass
class FakeServer:
    """A running stand-in: where it is, how it behaves, and what it was asked."""

    manners: Manners
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    cached: set[tuple[str, str | None, tuple[int, ...]]] = field(default_factory=set)
    closing: threading.Event = field(default_factory=threading.Event)
    adapters: dict[str, str] = field(default_factory=dict)  # name -> content
    dropped: int = 0
    hits: itertools.count[int] = field(default_factory=itertools.count)
    spoilt: int = 0  # answers on a hit that are wrong, if the script says so
    hung_up_on: threading.Event = field(default_factory=threading.Event)  # a client left in the midst of an answer

    def asked(self, line: str) -> list[Seen]:
        """The requests with this request line, `POST /v1/completions` for one."""
        return [request for request in self.seen if request.line == line]


@contextlib.contextmanager
def serving(manners: Manners | None = None, *, port: int = 0) -> Iterator[FakeServer]:
    """A stand-in on 127.0.0.1, on a free port unless one is given, for as long as the block runs."""
    fake = FakeServer(manners or Manners())
    connections: list[socket.socket] = []

    class Handler(_Handler):
        server_state = fake

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def get_request(self) -> tuple[socket.socket, Any]:
            """Keep the connection, which is ended with the server: a client may leave it open for its next request."""
            connection, address = super().get_request()
            connections.append(connection)
            return connection, address

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
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


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
            METRICS_PATH: manners.metrics,
            GAUGES_PATH: manners.gauges,
            "/health": "",
        }
        if fake.dropped < manners.dropped_gets:
            fake.dropped += 1
            self.close_connection = True
        elif manners.key is not None and self.headers["Authorization"] != f"Bearer {manners.key}":
            self.say(401, '{"error": "Unauthorized"}')
        elif manners.ended and self.path == "/health":
            self.say(503, "")
        else:
            page = manners.bodies.get(self.path, pages.get(self.path))
            self.say(404, "Not Found") if page is None else self.say(200, page)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        body: dict[str, Any] = json.loads(raw) if raw else {}
        _, manners = self.note(body)
        match self.path.partition("?")[0]:
            case path if path in manners.bodies:
                self.say(200, manners.bodies[path])
            case "/v1/completions":
                self.generate(body, tuple(body["prompt"]))
            case "/v1/chat/completions" if manners.chats:
                self.generate(body, rendered(body["messages"]))
            case path if path in manners.doors:
                self.at_door(path, body)
            case path if path in manners.pools:
                self.pool(path, body, pooled_prompt(body))
            case "/tokenize" if manners.chats and "prompt" in body:
                ids = [*body["prompt"].encode()]
                self.say(200, json.dumps({"tokens": ids * (2 if manners.wordy else 1)}))
            case "/tokenize" if manners.chats:
                self.say(200, json.dumps({"tokens": rendered(body["messages"])}))
            case "/reset_prefix_cache" if manners.reset is not None:
                if not manners.keeps:
                    self.server_state.cached.clear()
                self.say(200, manners.reset)
            case "/v1/load_lora_adapter":
                self.server_state.adapters[body["lora_name"]] = content_of(body["lora_path"])
                self.say(*(manners.in_place if body.get("load_inplace") else manners.lora))
            case "/v1/unload_lora_adapter" if manners.lora[0] == 200:
                self.say(200, "Success")
            case _:
                self.say(404, '{"detail": "Not Found"}')

    def note(self, body: dict[str, Any]) -> tuple[FakeServer, Manners]:
        seen = Seen(f"{self.command} {self.path}", self.headers["Authorization"], body, self.headers[RANK_HEADER])
        self.server_state.seen.append(seen)
        return self.server_state, self.server_state.manners

    def say(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def generate(self, body: dict[str, Any], prompt: tuple[int, ...]) -> None:
        """One answer, streamed or whole, as far as the script lets it come."""
        manners = self.server_state.manners
        if manners.fault is Fault.REFUSES or (not manners.token_prompts and "prompt" in body):
            return self.say(400, '{"error": {"message": "prompt must be text"}}')
        for name in manners.refuses:
            if name in body:
                return self.say(400, json.dumps({"error": {"message": f"{name} is off"}}))
        if body.get("priority", 0) > LARGEST and "priority" not in manners.ignores:
            return self.say(400, '{"error": {"message": "priority is too large"}}')
        if manners.fault is Fault.SILENT:
            self.server_state.closing.wait()
        if manners.fault in (Fault.SILENT, Fault.SPEECHLESS):
            self.close_connection = True
            return None
        if "stream" not in body:
            return self.say(200, json.dumps(self.reply(body, prompt).whole()))
        try:
            self.stream(body, prompt)
        except OSError:  # a client that hangs up closes with unread bytes, which resets the connection
            self.server_state.hung_up_on.set()
            self.close_connection = True
        return None

    def at_door(self, path: str, body: dict[str, Any]) -> None:
        """One answer of a door that answers as a whole."""
        manners = self.server_state.manners
        heard = {name: value for name, value in plain_body(path, body).items() if (path, name) not in manners.drops}
        if heard.get("priority", 0) > LARGEST:
            return self.say(400, '{"error": {"message": "priority is too large"}}')
        prompt = tuple(heard["prompt"]) if "prompt" in heard else rendered(heard["messages"])
        return self.say(200, json.dumps(of_door(path, self.reply(heard, prompt))))

    def pool(self, path: str, body: dict[str, Any], prompt: tuple[int, ...]) -> None:
        """The vectors of a prompt. Where answers are wrong on hits, cached tokens have none of their own."""
        fake = self.server_state
        who, wrong = fake.adapters.get(body["model"], body["model"]), fake.manners.corrupt == "tokens"
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
        """The events, each in a chunk; the fault strikes after the first token."""
        manners = self.server_state.manners
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        self.close_connection = manners.one_by_one
        head += b"Connection: close\r\n\r\n" if manners.one_by_one else b"\r\n"
        if manners.at_once:
            events = [chunk(line) for line in self.reply(body, prompt).events() if line is not None]
            self.wfile.write(head + b"".join(events) + b"0\r\n\r\n")
            return
        if not manners.late_headers:
            self.wfile.write(head)
        time.sleep(manners.delay)  # whatever is changed meanwhile is changed before the answer begins
        manners.before()
        if manners.holds_after == 0:
            self.hold()
            return
        if manners.late_headers:
            self.wfile.write(head)
        for number, line in enumerate(self.reply(body, prompt).events(), start=1):
            if line is None:  # the fault of a server that does not end its stream
                if manners.fault is Fault.STALLS:
                    self.server_state.closing.wait()
                self.close_connection = True
                return
            self.wfile.write(chunk(line))
            manners.after(number)
            if manners.holds_after == number:
                self.hold()
                return
            time.sleep(manners.pace)
        self.wfile.write(b"0\r\n\r\n")

    def hold(self) -> None:
        """Say nothing more until the client has hung up, which raises an OSError, or until the server is closed."""
        self.close_connection = True
        while not self.server_state.closing.is_set():
            if select.select([self.connection], [], [], 0.02)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError

    def reply(self, body: dict[str, Any], prompt: tuple[int, ...]) -> Reply:
        """What is said, by whoever is behind the name now."""
        fake = self.server_state
        who = fake.adapters.get(body["model"], body["model"])
        heard = {name: value for name, value in body.items() if name not in fake.manners.ignores}
        hit = self.hit(who, body, prompt)
        spoilt = hit > 0 and next(fake.hits) % fake.manners.every == min(FIRST_SPOILT, fake.manners.every - 1)
        fake.spoilt += spoilt and bool(fake.manners.corrupt)
        return Reply(fake.manners, who, heard, prompt, hit, spoilt=spoilt)

    def hit(self, who: str, body: dict[str, Any], prompt: tuple[int, ...]) -> int:
        """Tokens of whole blocks that were asked before of the same content under the same salt."""
        manners, cached = self.server_state.manners, self.server_state.cached
        salt = body.get("cache_salt") if manners.salts else None
        keys = [(who, salt, prompt[:end]) for end in range(BLOCK, len(prompt), BLOCK)]
        found = [len(key[2]) for key in keys if key in cached]
        cached.update(keys)
        return max(found, default=0) if manners.caches else 0


def content_of(path: str) -> str:
    """What tells an adapter from another: its files, or the path where there are none."""
    file = Path(path) / "adapter_model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else path


def pooled_prompt(body: dict[str, Any]) -> tuple[int, ...]:
    """The tokens of a prompt that is to be pooled: ids, two texts behind one another, or one beside a query."""
    if "input" in body:
        return tuple(body["input"])
    if body.get("text_1") == "!":
        return tuple(body["text_2"].encode())
    return tuple("".join([body.get("text_1") or body["query"], body.get("text_2") or body["documents"][0]]).encode())


def chunk(line: str) -> bytes:
    """One event as a chunk of the transfer encoding."""
    content = f"data: {line}\n\n".encode()
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"
