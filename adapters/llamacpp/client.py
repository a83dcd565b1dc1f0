"""The HTTP client of llama.cpp's server. `/completion` takes and returns token ids, `/metrics` counts prompt tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import requests

from coldproof.adapters.common.registered_adapters import RegisteredAdapters
from coldproof.adapters.llamacpp.content import ImageForm, prompt_with_images
from coldproof.adapters.protocol.images import has_images
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import CompletionRequest, Token
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import Reader, gap
from coldproof.adapters.server.metrics_page import Families

BASE_MODEL = "base"
HIT, COMPUTED = "llamacpp:prompt_tokens_cached", "llamacpp:prompt_tokens"
COUNTERS = {
    HIT: "hit_tokens",
    COMPUTED: "queried_tokens",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
}
LOST_TOKENS = (
    "llama.cpp left {} tokens of this answer out of its stream: in the model's vocabulary a character can take several "
    "tokens. Use a model whose tokens have whole characters, as in the files that `coldproof model` makes."
)


class LlamaCppAdapters(RegisteredAdapters):
    """The server's adapters: registered at the start, and chosen by number in each request's field `lora`.

    `switched_on`: the name of the adapter that is switched on for all requests that choose none.
    """

    def __init__(self, digests: Sequence[str]) -> None:
        super().__init__(digests)
        self.switched_on: str | None = None

    def scales(self, on: int | None) -> list[dict[str, Any]]:
        """Return the scales of all adapters: 1 for the adapter `on`, 0 for the others. None: 0 for all."""
        return [{"id": number, "scale": float(number == on)} for number in self.numbers.values()]

    def choice(self, model: str) -> list[dict[str, Any]] | None:
        """Return the `lora` field of a request to a served name. Raises RequestRefused for an unknown name.

        Requests to the base model have no such field, as with most clients, unless an adapter is switched on for all.
        """
        if model in (BASE_MODEL, self.switched_on) and model not in self.bound:
            return self.scales(None) if model == BASE_MODEL and self.switched_on is not None else None
        return [{"id": self.bound_to(model), "scale": 1.0}]


class Problem(msgspec.Struct, frozen=True):
    """An error that the server sent instead of an answer."""

    code: int = 500
    message: str = ""


class Candidate(msgspec.Struct, frozen=True):
    """The score of a candidate token."""

    logprob: float


class Score(msgspec.Struct, frozen=True):
    """The score of a token of the answer, and of the best candidates at its position."""

    logprob: float | None = None
    top_logprobs: list[Candidate] = []


class Timings(msgspec.Struct, frozen=True):
    """Statistics of a request. `cache_n`: the number of prompt tokens from the cache."""

    cache_n: int | None = None


class CompletionEvent(msgspec.Struct, frozen=True):
    """One event of a stream. The last event has `stop` true."""

    stop: bool | None = None
    stop_type: str = ""
    tokens_predicted: int | None = None  # of the whole answer, in the last event
    tokens: list[int] = []
    completion_probabilities: list[Score] = []
    timings: Timings = Timings()
    error: Problem | None = None


class LlamaCppClient(HttpClient):
    """A client for one llama.cpp server. `caching`: whether requests use its cache."""

    generate_path = "/completion"
    images: ImageForm | None = None  # how the server takes images; None: it takes none
    counters = COUNTERS
    labelled = ()
    filters_metrics = False

    def __init__(self, url: str, *, alive: Callable[[], bool], adapters: LlamaCppAdapters, caching: bool) -> None:
        super().__init__(url, alive=alive)
        self.adapters, self.caching = adapters, caching

    def new_session(self) -> requests.Session:
        """Return a session that opens a new connection for each request.

        The server closes a connection after a stream without notice, and the next request on it would fail.
        """
        session = super().new_session()
        session.headers["Connection"] = "close"
        return session

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the request's JSON. Raises RequestRefused for an unknown model, ValueError for images without a form.

        A request with images always names the scales of its adapters. Without them, a slot keeps the KV of an adapter
        (LORA-4), which would hide other causes.
        """
        with_images = has_images(request.prompt)
        if with_images and self.images is None:
            raise ValueError("the engine takes no images")
        fields: dict[str, Any] = {
            "prompt": prompt_with_images(request, self.images) if with_images and self.images else list(request.prompt),
            "n_predict": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "stream": True,
            "cache_prompt": self.caching,
        }
        choice = self.adapters.choice(request.model)
        if choice is None and with_images:
            choice = self.adapters.scales(None)
        if choice is not None:
            fields["lora"] = choice
        if request.options.logprobs:
            fields["n_probs"] = 2
        return fields

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return LlamaCppReader(on_token)

    def metrics_of(self, families: Families | None) -> Metrics:
        """Return the metrics. llama.cpp counts hits and computed tokens; their sum is the number of queried tokens."""
        found = super().metrics_of(families)
        hit, computed = found.hit_tokens, found.queried_tokens
        queried = None if hit is None or computed is None else hit + computed
        return msgspec.structs.replace(found, queried_tokens=queried)


class LlamaCppReader(Reader):
    """Collects an answer from llama.cpp's events."""

    expected = "a JSON object with tokens and stop"

    def take_event(self, data: str) -> None:
        """Read one event in JSON. Raises MsgspecError or ValueError if it has another form."""
        event = msgspec.json.decode(data, type=CompletionEvent)
        if event.error is not None:
            self.error, self.status = event.error.message, event.error.code
        elif event.stop is None:
            raise ValueError("the event has no field stop")
        else:
            self.add_tokens(event)
        if event.stop:
            self.cached_tokens = event.timings.cache_n
            self.finish_reason = "length" if event.stop_type == "limit" else "stop"
            self.done = True
            told, received = event.tokens_predicted, len(self.answers.get(0, []))
            if told is not None and (lost := told - received):
                self.error, self.status = LOST_TOKENS.format(lost), 501

    def add_tokens(self, event: CompletionEvent) -> None:
        """Add an event's tokens, with their scores if they were requested."""
        known, at = self.answers.setdefault(0, []), round(time.monotonic() - self.start_time, 6)
        scores = event.completion_probabilities or [Score()] * len(event.tokens)
        for token, score in zip(event.tokens, scores, strict=False):
            best = gap([candidate.logprob for candidate in score.top_logprobs])
            known.append(Token(id=token, at=at, logprob=score.logprob, gap=best))
        if self.on_token is not None and event.tokens:
            self.on_token(len(known))
