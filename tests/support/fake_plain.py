"""A stand-in for a server with OpenAI's fields and a cache of whole sequences, for unit tests of the client by URL.

It returns token ids beside scores, as llama.cpp's server does, or texts of which each character is a token, as mlx-lm's
does with a generated model. `PlainServer` scripts which of it there is.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.fake_reply import answer
from support.local_server import running

MODEL = "plain"
LEAST_STALE = 8  # tokens of a hit that answers wrongly: prompts that have nothing in common may begin alike


@dataclass
class PlainServer:
    """A running stand-in, what it offers, and the bodies that it received."""

    texts: bool = False  # prompts are texts, and answers have no token ids
    scores: bool = True  # ids stand beside scores
    ids: bool = False  # answers have vLLM's `token_ids`
    letters: int = 1  # tokens of each character of a text
    counts: bool = True  # cached tokens in usage
    uncounted: str = (
        ""  # but not in such answers: "cold", those with cache_prompt false; "whole", those in one response
    )
    replica: int | None = None  # the number of the generation that a server answers which has seen nothing
    usage: bool = True  # usage in a stream
    keeps: int = 4  # sequences; 0: there is no cache
    bypass: bool = False  # cache_prompt
    resets: bool = False  # /reset_prefix_cache
    health: bool = True  # /health
    limit: int | None = None  # tokens of a request, in the list of models
    stale: bool = False  # a hit answers wrongly
    dies_at: int | None = None  # the number of the generation that ends it
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    kept: list[tuple[int, ...]] = field(default_factory=list)
    dead: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hit(self, prompt: tuple[int, ...], body: dict[str, Any]) -> int:
        """Return how many tokens of a prompt are cached, and keep the prompt."""
        with self.lock:
            cached = (
                0
                if self.bypass and body.get("cache_prompt") is False
                else max(map(shared(prompt), self.kept), default=0)
            )
            self.kept = [*self.kept, prompt][-self.keeps :] if self.keeps else []
        return min(cached, len(prompt) - 1)


def shared(prompt: tuple[int, ...]) -> Any:
    """Return a function that counts the tokens with which a sequence and a prompt both begin."""

    def count(sequence: tuple[int, ...]) -> int:
        pairs = enumerate(zip(sequence, prompt, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(sequence), len(prompt)))

    return count


@contextlib.contextmanager
def serving(**offers: Any) -> Iterator[PlainServer]:
    """Run a stand-in on a free local port for the duration of the block."""
    fake = replace(PlainServer(), **offers)

    class Handler(_Handler):
        state = fake

    with running(Handler) as fake.url:
        yield fake


class _Handler(BaseHTTPRequestHandler):
    state: PlainServer
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """List the model, or say whether the server is healthy."""
        if self.path == "/v1/models":
            told = {"meta": {"n_ctx": self.state.limit}} if self.state.limit else {}
            self.reply(200, {"data": [{"id": MODEL, **told}]})
        elif self.path == "/health" and self.state.health:
            self.reply(503 if self.state.dead else 200, {})
        else:
            self.reply(404, {"error": "no such route"})

    def do_POST(self) -> None:
        """Generate, or empty the cache."""
        raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.path == "/reset_prefix_cache" and self.state.resets:
            self.state.kept.clear()
            self.reply(200, {"success": True})
        elif self.path == "/v1/completions":
            self.generate(json.loads(raw))
        else:
            self.reply(404, {"error": "no such route"})

    def generate(self, body: dict[str, Any]) -> None:
        """Answer a generation."""
        state = self.state
        state.bodies.append(body)
        state.dead = state.dead or len(state.bodies) - 1 == state.dies_at
        if state.dead or isinstance(body["prompt"], str) != state.texts:
            self.reply(
                404, {"error": "the thread that generates has ended" if state.dead else "the prompt has no text"}
            )
            return
        prompt = tuple(map(ord, body["prompt"])) if state.texts else tuple(body["prompt"])
        cached = 0 if len(state.bodies) - 1 == state.replica else state.hit(prompt, body)
        wrong = state.stale and cached >= LEAST_STALE
        tokens = answer("other" if wrong else MODEL, prompt, body["max_tokens"])
        counts = {"prompt_tokens": len(prompt) * state.letters, "completion_tokens": len(tokens)}
        left_out = {"cold": body.get("cache_prompt") is False, "whole": not body.get("stream")}
        counted = state.counts and not left_out.get(state.uncounted, False)
        usage = counts | ({"prompt_tokens_details": {"cached_tokens": cached}} if counted else {})
        wants = bool(body.get("logprobs"))
        if not body.get("stream"):
            self.reply(200, {"choices": [choice(state, tokens, wants=wants)], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for i, token in enumerate(tokens):
            self.event({"choices": [choice(state, [token], wants=wants, last=i == len(tokens) - 1)]})
        if state.usage:
            self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, content: dict[str, Any]) -> None:
        """Send an event of a stream."""
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def reply(self, status: int, content: dict[str, Any]) -> None:
        """Send a whole response."""
        raw = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def choice(state: PlainServer, tokens: list[int], *, wants: bool, last: bool = True) -> dict[str, Any]:
    """Return a part of an answer. `wants`: the request wants scores."""
    found: dict[str, Any] = {"index": 0, "text": "".join(map(chr, tokens)), "finish_reason": "length" if last else None}
    if state.ids:
        found["token_ids"] = tokens
    if wants and state.scores:
        tops = [{"id": 1, "logprob": -0.5}, {"id": 2, "logprob": -2.5}]
        found["logprobs"] = {"content": [{"id": one, "logprob": -0.5, "top_logprobs": tops} for one in tokens]}
    return found
