"""A stand-in for an SGLang server, for unit tests of the client only: no verdict on an engine rests on it.

It answers as SGLang 0.5.23 does, field by field. `ServerBehaviour` scripts what it offers and how it fails.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from support.fake_reply import answer, rendered
from support.fake_sglang_endpoints import ENDPOINTS, as_endpoint_answer, as_generate_body
from support.fake_sglang_pages import load, metrics, server_info
from support.local_server import running

MODEL, ROOT = "base", "/models/tiny"
LOADED = "Failed to load LoRA adapter {} because it is already loaded"


LARGEST = 2**63  # beyond the priorities
PAUSE_SECONDS = 600  # a request waits so long for the end of a pause: no test is that slow
WEIGHT_ROUTES = ("/update_weights_from_disk", "/weights_checker", "/pause_generation", "/continue_generation")
SESSION_ROUTES = ("/open_session", "/close_session")


class Fault(enum.Enum):
    """Ways in which a generation fails."""

    NONE = "answers"
    BREAKS = "closes the socket after the first token"
    ERROR_EVENT = "an error event instead of an answer"
    ABORT_EVENT = "an event with a token that nobody computed, which says that there is none"
    GARBLED = "an event without meta_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBehaviour:
    """The behaviour of a server. By default it offers everything that this protocol has."""

    fault: Fault = Fault.NONE
    model: dict[str, Any] | None = field(
        default_factory=lambda: {"model_path": ROOT, "served_model_name": MODEL, "is_generation": True}
    )
    server: dict[str, Any] = field(default_factory=dict)  # beside the usual
    older: bool = False  # only /get_model_info and /get_server_info
    salts: tuple[str, ...] = ("cache_salt", "extra_key")
    lora: bool = True
    counts: bool = True  # cached_tokens
    page: int = 16  # tokens that are kept and found together
    counters: bool = True  # /metrics
    loads: list[dict[str, Any]] = field(default_factory=lambda: [load(1), load(0)])  # /v1/loads; none: no such route
    flush: tuple[int, str] = (200, "Cache flushed.\n")
    incremental: bool = False  # events have the new tokens instead of all
    windows: int = 0  # tokens of sliding windows
    routes: tuple[str, ...] = (*WEIGHT_ROUTES, *SESSION_ROUTES)  # what /openapi.json lists
    forgets: bool = False  # a turn sees nothing of its session
    streams: bool = True  # there are streaming sessions
    careless: bool = False  # a streaming session goes on with the KV of its first turn's adapter
    keeps: bool = False  # an update keeps the cache, whatever the request says
    busy: bool = False  # a flush during a pause fails
    chats: bool = True  # /tokenize, and the endpoints beside /generate
    reports: bool = True  # cached tokens at these endpoints
    drops: tuple[tuple[str, str], ...] = ()  # (path, field of /generate): what changes nothing at one endpoint
    wordy: bool = False  # a text has more tokens than it has characters
    key: str | None = None
    refuses: tuple[str, ...] = ()  # fields that are answered with 400


@dataclass
class FakeSglang:
    """A running stand-in, and the bodies that it received."""

    behaviour: ServerBehaviour
    url: str = ""
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    cached: set[tuple[object, ...]] = field(default_factory=set)
    adapters: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)  # what each turn holds, by its rid
    streaming: dict[str, str] = field(default_factory=dict)  # streaming session -> content of its first turn's adapter
    weights: str = ""  # the content of the current ones; nothing for those of the start
    running: threading.Event = field(default_factory=threading.Event)  # not paused
    queried: int = 0
    hits: int = 0

    def received(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies that were sent to a path."""
        return [body for where, body in self.bodies if where == path]


@contextlib.contextmanager
def serving(behaviour: ServerBehaviour | None = None, **changes: Any) -> Iterator[FakeSglang]:
    """Run a stand-in on a free local port for the duration of the block."""
    fake = FakeSglang(replace(behaviour or ServerBehaviour(), **changes))
    fake.running.set()

    class Handler(_Handler):
        state = fake

    with running(Handler) as fake.url:
        yield fake


class _Handler(BaseHTTPRequestHandler):
    state: FakeSglang
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        fake, behaviour = self.state, self.state.behaviour
        older = "get_" if behaviour.older else ""
        pages: dict[str, Any] = {
            "/v1/models": {"data": [{"id": MODEL, "root": MODEL, "max_model_len": 4096}]},
            f"/{older}model_info": behaviour.model,
            f"/{older}server_info": server_info(behaviour),
            "/openapi.json": {"paths": {route: {"post": {}} for route in behaviour.routes}}
            if behaviour.routes
            else None,
            "/metrics": metrics(fake) if behaviour.counters else None,
            "/v1/loads": {"loads": behaviour.loads} if behaviour.loads else None,
        }
        page = pages.get(self.path)
        if behaviour.key is not None and self.headers["Authorization"] != f"Bearer {behaviour.key}":
            self.say(401, {"error": "Unauthorized"})
        else:
            self.say(404, {"detail": "Not Found"}) if page is None else self.say(200, page)

    def do_POST(self) -> None:
        fake, behaviour = self.state, self.state.behaviour
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        body: dict[str, Any] = json.loads(raw) if raw not in (b"", b"null") else {}
        fake.bodies.append((self.path, body))
        match self.path:
            case "/generate":
                self.generate(body)
            case "/tokenize" if behaviour.chats and "prompt" in body:
                self.say(200, {"tokens": [*body["prompt"].encode()] * (2 if behaviour.wordy else 1)})
            case "/tokenize" if behaviour.chats:
                self.say(200, {"tokens": rendered(body["messages"])})
            case path if path in ENDPOINTS and behaviour.chats:
                self.at_endpoint(path, body)
            case "/flush_cache" if behaviour.busy and not fake.running.is_set():
                self.say(400, "Flush cache failed.")
            case "/flush_cache":
                fake.cached.clear()
                self.say(*behaviour.flush)
            case "/update_weights_from_disk":
                fake.weights = content(body["model_path"], start=(behaviour.model or {}).get("model_path", ROOT))
                if body.get("flush_cache", True) and not behaviour.keeps:
                    fake.cached.clear()
                self.say(200, {"success": True, "message": "Succeeded to update model weights."})
            case "/weights_checker" if "/weights_checker" in behaviour.routes:
                digest = hashlib.sha256(fake.weights.encode()).hexdigest()
                self.say(
                    200, {"success": True, "message": "", "ranks": [{"checksums": {}, "per_gpu_checksum": digest}]}
                )
            case "/pause_generation" | "/continue_generation":
                fake.running.clear() if self.path == "/pause_generation" else fake.running.set()
                self.say(200, {"status": "ok"})
            case "/flush_cache?timeout=10":
                fake.cached.clear()
                self.say(400, "Flush cache failed.") if behaviour.busy else self.say(200, "Cache flushed.")
            case "/open_session" if body["session_id"] in fake.sessions:
                self.say(400, {"error": {"message": "Failed to open the session."}})
            case "/open_session":
                fake.sessions[body["session_id"]] = {}
                fake.streaming |= {body["session_id"]: ""} if body.get("streaming") else {}
                self.say(200, json.dumps(body["session_id"]))
            case "/close_session":
                self.say(200, "" if fake.sessions.pop(body["session_id"], None) else "it does not exist")
            case "/load_lora_adapter" if not behaviour.lora:
                self.say(400, {"success": False, "error_message": "LoRA is not enabled."})
            case "/load_lora_adapter" if body["lora_name"] in fake.adapters:
                self.say(400, {"success": False, "error_message": LOADED.format(body["lora_name"])})
            case "/load_lora_adapter":
                fake.adapters[body["lora_name"]] = body["lora_path"]
                self.say(200, {"success": True})
            case "/unload_lora_adapter":
                self.say(200 if fake.adapters.pop(body["lora_name"], None) else 400, {})
            case _:
                self.say(404, {"detail": "Not Found"})

    def say(self, status: int, page: Any) -> None:
        content = (page if isinstance(page, str) else json.dumps(page)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def generate(self, body: dict[str, Any]) -> None:
        """Send one answer, streamed or whole."""
        fake = self.state
        fake.running.wait(PAUSE_SECONDS)
        refusal = refused(fake.behaviour, body)
        if refusal is not None:
            return self.say(400, {"error": {"message": refusal}})
        said = events(fake, body)
        if not body["stream"]:
            return self.say(200, said[-1])
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for event in said:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            if fake.behaviour.fault is Fault.BREAKS:
                return None
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def at_endpoint(self, path: str, body: dict[str, Any]) -> None:
        """Send one answer of an endpoint that does not stream."""
        fake, behaviour = self.state, self.state.behaviour
        heard = {
            key: value
            for key, value in as_generate_body(path, body, fake.adapters).items()
            if (path, key) not in behaviour.drops
        }
        refusal = refused(behaviour, heard)
        if refusal is not None:
            return self.say(400, {"error": {"message": refusal}})
        said = events(fake, heard)[-1]
        if not behaviour.reports:
            said["meta_info"].pop("cached_tokens", None)
        return self.say(200, as_endpoint_answer(path, body, heard["input_ids"], said))


def refused(behaviour: ServerBehaviour, body: dict[str, Any]) -> str | None:
    """Return the reason for which a request is refused, or None."""
    if not -LARGEST <= body.get("priority", 0) < LARGEST:
        return "priority must be a signed 64-bit integer"
    off = [name for name in behaviour.refuses if name in {**body, **body["sampling_params"]}]
    return f"{off[0]} is off" if off else None


def events(fake: FakeSglang, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all events of the answer to one request."""
    behaviour, prompt, sampling = fake.behaviour, tuple(body["input_ids"]), body["sampling_params"]
    if behaviour.fault is Fault.ERROR_EVENT:
        return [{"error": {"message": "too long", "type": "invalid_request_error", "code": 400}}]
    if behaviour.fault is Fault.ABORT_EVENT:
        reason = {"type": "abort", "message": "too long", "status_code": 400}
        return [{"text": "f", "output_ids": [102], "meta_info": {"finish_reason": reason, "completion_tokens": 1}}]
    if behaviour.fault is Fault.GARBLED:
        return [{"text": "f", "output_ids": [102]}]
    session = body.get("session_params", {}).get("id")
    turns, streams = fake.sessions.get(session, {}), session in fake.streaming
    if not behaviour.forgets:
        prompt = (list(turns.values() or [()])[-1] if streams else held(turns, body)) + prompt
    folder = fake.adapters.get(body.get("lora_path", ""))
    who = "" if folder is None else digest_of_weights(folder)
    if streams and behaviour.careless:
        who = fake.streaming[session] if turns else who
        fake.streaming[session] = who
    tokens = answer(f"{who}{fake.weights}", prompt, sampling["max_new_tokens"])
    end = next((i + 1 for i, token in enumerate(tokens) if chr(token) in sampling.get("stop", ())), None)
    tokens = tokens[:end]
    turns[body.get("rid", "")] = (*prompt, *tokens)
    hit = found(fake, who, body, prompt, (*prompt, *tokens[:-1]))
    said = []
    for count in range(1, len(tokens) + 1):
        first = count - 1 if behaviour.incremental else 0
        reason = {"type": "stop" if end else "length"} if count == len(tokens) else None
        about: dict[str, Any] = {"finish_reason": reason, "completion_tokens": count, "num_retractions": 2}
        if behaviour.counts:
            about["cached_tokens"] = hit
        if body.get("return_logprob"):
            about["output_token_logprobs"] = [[-0.5, token, None] for token in tokens[first:count]]
            about["output_top_logprobs"] = [[[-0.5, t, None], [-2.0, 1, None]] for t in tokens[first:count]]
        if "logprob_start_len" in body:
            about["input_token_logprobs"] = [[-0.25 if i else None, t, None] for i, t in enumerate(prompt)]
        ids = tokens[first:count]
        said.append({"text": "".join(map(chr, ids)), "output_ids": ids, "meta_info": about})
    return said


def held(turns: dict[str, tuple[int, ...]], body: dict[str, Any]) -> tuple[int, ...]:
    """Return the tokens that a turn continues: those of the turn that it names, up to its offset."""
    params = body.get("session_params", {})
    return turns[params["rid"]][: params["offset"]] if "rid" in params else ()


def content(folder: str, *, start: str) -> str:
    """Return the digest of the weights in a folder as it is now; the empty string if they are those of the start."""
    found = digest_of_weights(folder)
    return "" if found == digest_of_weights(start) else found


def digest_of_weights(folder: str) -> str:
    """Return a digest of a folder's files; the path itself if the folder does not exist."""
    files = sorted(Path(folder).glob("*.safetensors"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if files else folder


def found(fake: FakeSglang, who: str, body: dict[str, Any], prompt: tuple[int, ...], written: tuple[int, ...]) -> int:
    """Return the tokens of the longest prefix that was computed before for the same content under the same salts.

    `written`: the tokens that this request computes and leaves in the cache.
    """
    salts = tuple(body.get(name) for name in ("cache_salt", "extra_key") if name in fake.behaviour.salts)
    page = fake.behaviour.page
    keys = [(who, salts, prompt[:end]) for end in range(page, len(prompt), page)]
    hit = max((len(key[2]) for key in keys if key in fake.cached), default=0)
    fake.cached.update((who, salts, written[:end]) for end in range(page, len(written) + 1, page))
    fake.queried, fake.hits = fake.queried + len(prompt), fake.hits + hit
    return hit
