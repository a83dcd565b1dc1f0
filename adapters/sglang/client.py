"""The HTTP client of SGLang servers. `/generate` takes and returns token ids; other endpoints are in `endpoints.py`.

The bodies, the reader and the scrapes are SGLang's own. Sending, client disconnects and connection errors are those of
`HttpClient`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Stage, Token
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.server.answers import decoded
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import TOP_LOGPROBS, Reader, gap
from coldproof.adapters.server.endpoints import Retokenize
from coldproof.adapters.sglang import endpoints
from coldproof.adapters.sglang.endpoints import NO_SAMPLING_SEED
from coldproof.adapters.sglang.sessions import OpenSessions

HITS, QUERIES, RETRACTIONS = "sglang:cached_tokens", "sglang:prompt_tokens", "sglang:num_retracted_requests"
COUNTERS = {HITS: "hit_tokens", QUERIES: "queried_tokens", RETRACTIONS: "preemptions"}
OTHER_LAYERS = tuple(f"sglang:{layer}_{what}_tokens" for layer in ("swa", "mamba") for what in ("available", "used"))


class Load(msgspec.Struct, frozen=True):
    """The load of one scheduler."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    max_running_requests: int | None = None
    num_waiting_uncached_tokens: int | None = None

    @property
    def between_chunks(self) -> bool:
        """Return whether a request is between two chunks of its prefill.

        SGLang then counts it neither as running nor as waiting, but still counts its uncomputed tokens.
        """
        return not self.num_waiting_reqs and bool(self.num_waiting_uncached_tokens)


class Loads(msgspec.Struct, frozen=True):
    """The answer of /v1/loads: the load of each replica's scheduler."""

    loads: list[Load]


class SglangClient(HttpClient):
    """A client for one SGLang server. `salt_field`: `cache_salt`, or `extra_key` in older versions."""

    generate_path = "/generate"
    counters = COUNTERS
    labelled = OTHER_LAYERS
    filters_metrics = False
    reset_path, load_path, unload_path = "/flush_cache", "/load_lora_adapter", "/unload_lora_adapter"
    base_model = "default"
    salt_field = "cache_salt"
    counts_at_endpoints = False  # whether the endpoints beside /generate report cached tokens
    whole_endpoints = endpoints.WHOLE
    has_loads = True  # whether the server has /v1/loads; set by the first call of `loads`

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.sessions = OpenSessions()
        self.unloaded: set[str] = set()  # names that the server would load again from their former path

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """Send one generation once and return its answer. A turn that is refused or aborted ends its session.

        A chat is answered as a whole, so that its client does not disconnect. Raises as `HttpClient.complete`, and
        RequestRefused for an unloaded name: the server would load it again, and refuse its next load.
        """
        if request.model in self.unloaded:
            raise RequestRefused(404, f"{request.model} was unloaded")
        if request.messages is not None and request.endpoint is None:
            request = msgspec.structs.replace(request, endpoint=Endpoint.CHAT)
        if request.session is None:
            return super().complete(request, on_token)
        self.sessions.begin(self, request)
        try:
            answer = super().complete(request, on_token)
        except RequestRefused:
            self.sessions.end(self, request.session)
            raise
        if answer.aborted is None:
            self.sessions.turns[request.session] += 1
        else:
            self.sessions.end(self, request.session)
        return answer

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Load an adapter. Raises RequestRefused with the server's reason."""
        super().load_adapter(name, path, in_place=in_place)
        self.unloaded.discard(name)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises RequestRefused with the server's reason."""
        super().unload_adapter(name)
        self.unloaded.add(name)

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON body of a request to /generate. Streamed, except with prompt logprobs.

        Raises RequestRefused for sampled answers, which have no seed there.
        """
        response_options = request.options
        if response_options.answers > 1:
            raise RequestRefused(501, NO_SAMPLING_SEED)
        sampling: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": not response_options.stop and response_options.pattern is None,
        }
        if response_options.stop:
            sampling["stop"] = list(response_options.stop)
        if response_options.pattern is not None:
            sampling["regex"] = response_options.pattern
        fields: dict[str, Any] = {"input_ids": list(request.prompt), "sampling_params": sampling}
        fields["stream"] = not response_options.prompt_logprobs
        if response_options.prompt_logprobs or response_options.logprobs:
            fields |= {"return_logprob": True, "top_logprobs_num": TOP_LOGPROBS}
        if response_options.prompt_logprobs:
            fields["logprob_start_len"] = 0
        if request.model != self.base_model:
            fields["lora_path"] = request.model
        if request.cache_salt is not None:
            fields[self.salt_field] = request.cache_salt
        if request.priority:
            fields["priority"] = request.priority
        if request.session is not None:
            fields |= self.sessions.fields(request)
        return fields

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return SglangReader(on_token)

    def endpoint_body(self, request: CompletionRequest, endpoint: Endpoint) -> dict[str, Any]:
        """Return the JSON body of a request at an endpoint beside /generate."""
        return endpoints.body(request, endpoint, self.base_model, self.salt_field)

    def read_endpoint(self, endpoint: Endpoint, content: bytes, at: float, retokenize: Retokenize) -> Completion:
        """Return the answer of such an endpoint."""
        return endpoints.read(endpoint, content, at, retokenize, counts=self.counts_at_endpoints)

    def reset(self, scope: tuple[ResetScope, ...] = ()) -> tuple[bool, str]:  # noqa: ARG002 - /flush_cache has none
        """Send POST /flush_cache. Under load the server refuses with status 400, which is a valid answer."""
        try:
            return True, self.post(self.reset_path).text
        except RequestRefused as problem:
            if problem.status != 400:
                raise
            return False, problem.body

    def metrics(self) -> Metrics:
        """Return the counters of /metrics and the gauges of /v1/loads. The gauges of /metrics are of an earlier step.

        A counter is not published before its first increment. No counter of retractions therefore means 0.
        """
        counters, gauges = super().metrics(), self.gauges()
        if counters.queried_tokens is not None and counters.preemptions is None:
            counters = msgspec.structs.replace(counters, preemptions=0.0)
        return msgspec.structs.replace(
            counters, running=gauges.running, waiting=gauges.waiting, pool_usage=gauges.pool_usage
        )

    def gauges(self) -> Metrics:
        """Return running and waiting requests and the pool's usage by /v1/loads; nothing without this route."""
        loads = self.loads()
        if not loads:
            return Metrics()
        used, total = sum(load.num_used_tokens for load in loads), sum(load.max_total_num_tokens for load in loads)
        return Metrics(
            running=float(sum(load.num_running_reqs + load.between_chunks for load in loads)),
            waiting=float(sum(load.num_waiting_reqs for load in loads)),
            pool_usage=used / total if total else None,
        )

    def loads(self) -> list[Load]:
        """Send GET /v1/loads and return the load of each replica's scheduler; empty for a server without the route."""
        response = self.get("/v1/loads") if self.has_loads else None
        if response is None or response.status_code != 200:
            self.has_loads = False
            return []
        return decoded(response, Loads, "each scheduler's load, as SGLang reports it").loads

    def most_requests(self) -> int | None:
        """Return the maximum number of running requests, or None if a scheduler does not report it."""
        limits = [load.max_running_requests for load in self.loads()]
        return sum(limit for limit in limits if limit) if limits and None not in limits else None


class SglangReader(Reader):
    """Collects an answer from SGLang's events or from one whole response. Both have the same form."""

    expected = "a JSON object with output_ids and meta_info"
    retractions: int | None = None

    def completion(self, aborted: Stage | None = None) -> Completion:
        """Return the collected answer. `preemptions` is the number of retractions by the scheduler."""
        return msgspec.structs.replace(super().completion(aborted), preemptions=self.retractions)

    def take_event(self, data: str) -> None:
        """Read one event in JSON. Raises the errors of indexing if it has another form."""
        event: dict[str, Any] = msgspec.json.decode(data)
        if "error" in event:
            self.refuse(event["error"].get("code"), event["error"]["message"])
            return
        about = event["meta_info"]
        reason = about.get("finish_reason") or {}
        if reason.get("type") == "abort" and reason.get("status_code"):  # the event has a token that was not computed
            self.refuse(reason["status_code"], reason.get("message", "aborted"))
            return
        if about.get("cached_tokens") is not None:
            self.cached_tokens = int(about["cached_tokens"])
        if about.get("num_retractions") is not None:
            self.retractions = int(about["num_retractions"])
        if about.get("input_token_logprobs"):
            self.prompt_logprobs = tuple(row[0] for row in about["input_token_logprobs"])
        self.extend(event, about)
        self.finish_reason = reason.get("type") or self.finish_reason

    def refuse(self, status: object, message: str) -> None:
        """Record the error that the server sent instead of an answer."""
        self.error, self.status = message, int(str(status or 500))

    def extend(self, event: dict[str, Any], about: dict[str, Any]) -> None:
        """Add an event's new tokens. An event has either all tokens so far or only the new ones.

        With only new ones, the event that ends an aborted request repeats its last token (0.5.23: _handle_abort_req).
        """
        known, ids = self.answers.setdefault(0, []), event["output_ids"]
        count = about.get("completion_tokens", len(ids))
        cumulative = len(ids) == count
        new = ids[len(known) :] if cumulative else ids[: max(0, count - len(known))]
        self.text = event["text"] if cumulative else self.text + event["text"]
        at = round(time.monotonic() - self.start_time, 6)
        scores = token_scores(about, len(new))
        known += [Token(id=int(i), at=at, logprob=s, gap=g) for i, (s, g) in zip(new, scores, strict=True)]
        if self.on_token is not None and new:
            self.on_token(len(known))


def token_scores(about: dict[str, Any], count: int) -> list[tuple[float | None, float | None]]:
    """Return (logprob, logprob margin) of the last `count` tokens. SGLang's rows are (logprob, id, text)."""
    if not about.get("output_token_logprobs") or count == 0:
        return [(None, None)] * count
    chosen, top = about["output_token_logprobs"][-count:], about["output_top_logprobs"][-count:]
    return [(row[0], gap([one[0] for one in best or ()])) for row, best in zip(chosen, top, strict=True)]
