"""The HTTP client of OpenAI-compatible servers, with the extensions of engines that have a prefix cache.

Spawned and attached engines use the same client. A generation is sent exactly once: it is sent again only after the
server refused it before any processing, and the answer says how often. Only GET requests, which change nothing in the
engine, are retried otherwise. The API key is kept in one header and nowhere else.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import requests
import tenacity
import urllib3

from coldproof.adapters.common.redact import KEY_VARIABLE, hide
from coldproof.adapters.common.reset_route import RESET_PATH, SIDE_PATHS, reset_path
from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.pooling import Task, as_rows
from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.protocol.requests import Abort, Completion, CompletionRequest, Message, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server import completions, content, endpoints, pooling
from coldproof.adapters.server.answers import UNREADABLE, decoded, malformed, safe_start
from coldproof.adapters.server.busy import sent_when_free
from coldproof.adapters.server.completions import Reader
from coldproof.adapters.server.disconnect import sent_unless_due, wait_for_disconnect
from coldproof.adapters.server.event_stream import events
from coldproof.adapters.server.metrics_page import Families, families_of
from coldproof.adapters.server.transport import BROKEN, CONNECT_SECONDS, cannot_connect, metered_session
from coldproof.adapters.server.vllm_metrics import COUNTERS, COUNTERS_PATH, GAUGES_PATH, METRICS_PATH

# Servers close connections that rest (uvicorn: after 5 s). A request that is sent at that moment gets no answer, and a
# generation is not sent again.
IDLE_SECONDS = 2.0
SCRAPE_SECONDS = 60.0  # for GET requests; a server without enough CPU time has taken more than 20 s
# Between two bytes of one answer, including the time in a queue. Bursts are monitored for stalls with shorter limits.
READ_TIMEOUT_SECONDS = 180.0
STREAM = "a stream of server-sent events that ends with data: [DONE]"
ENGINE_DEAD = "EngineCore encountered an issue"  # how vLLM's server says that its engine has ended, before it ends
DEAD_SECONDS = 20.0


class Tokens(msgspec.Struct, frozen=True):
    """The answer of /tokenize."""

    tokens: tuple[completions.Count, ...]


def visible_abort(request: CompletionRequest) -> Abort | None:
    """Return when a client of a server disconnects. It never does so for a preemption, because it cannot see one."""
    return None if request.abort is not None and request.abort.at is Stage.PREEMPTED else request.abort


class HttpClient:
    """An HTTP client for one server. Each thread has its own session, because `requests` sessions are not thread-safe.

    A subclass for another HTTP interface overrides the paths and `body`, `reader`, `reset` and `metrics`.
    """

    generate_path: str | None = None  # None: the completions or the chat route, depending on the request
    counters: Mapping[str, str] = COUNTERS  # metric family -> field of `Metrics`
    labelled: tuple[str, ...] = ("vllm:cache_config", "vllm:lora_requests_info")
    filters_metrics = True  # whether the server can return some of its metrics; set by the first scrape
    names_tokens = False  # whether token ids come as names of tokens with scores; set by the probes
    whole_endpoints: Collection[Endpoint] = endpoints.READERS  # whose answers are read as a whole
    content_shape: EngineShape | None = None  # with the sizes of images and rows; None: prompts have tokens only
    reset_path = RESET_PATH
    load_path, unload_path = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

    def __init__(
        self,
        url: str,
        *,
        alive: Callable[[], bool],
        read_timeout: float = READ_TIMEOUT_SECONDS,
        time: RequestTime | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.alive = alive
        self.read_timeout = read_timeout
        self.time = time or RequestTime()
        parts = urlsplit(self.url)
        if parts.password:  # a server may repeat it, or the header that it becomes
            hide("password", unquote(parts.password))
            hide("user and password", f"{unquote(parts.username or '')}:{unquote(parts.password)}")
        self._local = threading.local()

    @property
    def printable_url(self) -> str:
        """Return the URL without user name and password."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def session(self) -> requests.Session:
        """Return this thread's session, a new one after a rest.

        It ignores proxy settings and netrc for http URLs, so that no proxy answers.
        """
        now = time.monotonic()
        if now - getattr(self._local, "asked", -math.inf) > IDLE_SECONDS:
            if hasattr(self._local, "session"):
                self._local.session.close()
            self._local.session = self.new_session()
        self._local.asked = now
        own: requests.Session = self._local.session
        return own

    def new_session(self) -> requests.Session:
        """Return a session with the headers of this server."""
        session = metered_session(self.time)
        session.trust_env = urlsplit(self.url).scheme == "https"
        key = os.environ.get(KEY_VARIABLE)
        if key:
            session.headers["Authorization"] = f"Bearer {key}"
        return session

    def get(self, path: str) -> requests.Response:
        """Send a GET request, with retries, and return its response.

        Raises EngineDied if no answer can be read, MalformedAnswer, and RequestOverdue.
        """
        try:
            return sent_when_free(lambda: self._get(path), self.time)[0]
        except BROKEN as problem:
            raise self._connection_lost(problem) from problem

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(requests.ConnectionError),
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_fixed(0.3),
        reraise=True,
    )
    def _get(self, path: str) -> requests.Response:
        if not self.alive():
            raise EngineDied("the engine's process has ended")
        return self.session().get(self.url + path, timeout=(CONNECT_SECONDS, min(SCRAPE_SECONDS, self.read_timeout)))

    def post(
        self,
        path: str,
        body: dict[str, Any] | list[Any] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> requests.Response:
        """Send a POST request once, and return its response.

        Raises RequestRefused for an error status, EngineDied if the connection fails, EngineSilent on a read timeout,
        MalformedAnswer, and RequestOverdue.
        """
        return self.posted(path, body, headers, lambda: None)[0]

    def posted(
        self, path: str, body: Any, headers: Mapping[str, str], on_wait: Callable[[], None]
    ) -> tuple[requests.Response, int]:
        """Send a POST request once. Return its response, and how often the server was busy before. Raises as `post`.

        `on_wait` is called while the client waits for a busy server.
        """
        limits = (CONNECT_SECONDS, self.read_timeout)

        def send() -> requests.Response:
            return self.session().post(self.url + path, json=body, headers=headers, timeout=limits)

        try:
            response, busy = sent_when_free(send, self.time, on_wait)
        except requests.ReadTimeout as problem:
            raise self._timed_out(path) from problem
        except BROKEN as problem:
            raise self._connection_lost(problem) from problem
        if response.status_code >= 400:
            raise RequestRefused(response.status_code, safe_start(response.text))
        return response, busy

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """Send one generation once and return its answer. Disconnect when the request's `abort` is due.

        Raises RequestRefused, EngineDied, EngineSilent, MalformedAnswer or RequestOverdue.
        """
        try:
            return self.answer(request, on_token)
        except EngineError:
            self.leave_connection()
            raise

    def leave_connection(self) -> None:
        """Send this thread's next request over a new connection.

        On one with a broken answer, more of it may arrive and be taken for the next answer.
        """
        self._local.asked = -math.inf

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None] | None) -> Completion:
        """Send one generation and return its answer. Raises as `complete`."""
        if request.options.pooled is not None:
            return self.pool(request, request.options.pooled, on_token)
        if request.endpoint is not None and request.endpoint in self.whole_endpoints:
            return self.complete_at(request, request.endpoint, on_token)
        path, reader = self.path(request), self.reader(on_token)
        reader.expect(request)
        try:
            sent, busy = sent_when_free(lambda: self.sent(path, request), self.time, waiting(on_token))
            if isinstance(sent, Stage):
                return msgspec.structs.replace(reader.completion(sent), busy=busy)
            with sent as response:
                if response.status_code >= 400:
                    raise self._failed(response.status_code, response.text)
                aborted = self.read(response, reader, request)
        except BROKEN as problem:
            # requests raises a timeout in the middle of a body as a ConnectionError around a ReadTimeoutError.
            silent = isinstance(problem, requests.ReadTimeout | urllib3.exceptions.ReadTimeoutError)
            if silent or "Read timed out" in str(problem):
                raise self._timed_out(path) from problem
            raise self._connection_lost(problem) from problem
        answer = msgspec.structs.replace(self._finished(response, reader, aborted), busy=busy)
        return content.answer(request, answer) if content.has_content(request) else answer

    def path(self, request: CompletionRequest) -> str:
        """Return the route of a generation request."""
        if self.generate_path is None and content.has_content(request):
            return content.path(request)
        return self.generate_path or completions.path(request)

    def sent(self, path: str, request: CompletionRequest) -> requests.Response | Stage:
        """Send a generation. Return its response, or its stage if the client disconnects before the headers."""
        body, limits = self.body(request), (CONNECT_SECONDS, self.read_timeout)
        headers = completions.headers(request.rank, request.hand_over_ms)

        def send(session: requests.Session) -> requests.Response:
            return session.post(self.url + path, json=body, headers=headers, stream=True, timeout=limits)

        abort = visible_abort(request)
        if abort is None or abort.after_tokens:
            return send(self.session())
        return sent_unless_due(send, self.new_session(), abort, self.stage, self.time)

    def complete_at(
        self, request: CompletionRequest, endpoint: Endpoint, on_token: Callable[[int], None] | None
    ) -> Completion:
        """Send one generation to an endpoint whose answers are read as a whole. Raises as `complete`, and NotExact."""
        began = time.monotonic()
        headers = completions.headers(request.rank, request.hand_over_ms)
        response, busy = self.posted(endpoint.value, self.endpoint_body(request, endpoint), headers, waiting(on_token))
        at = round(time.monotonic() - began, 6)
        try:
            answer = self.read_endpoint(
                endpoint, response.content, at, lambda text: self.tokens_of(request.model, text)
            )
        except UNREADABLE as problem:
            raise malformed(response, response.text, endpoints.EXPECTED) from problem
        if on_token is not None and answer.tokens:
            on_token(len(answer.tokens))
        return msgspec.structs.replace(answer, busy=busy)

    def endpoint_body(self, request: CompletionRequest, endpoint: Endpoint) -> dict[str, Any]:
        """Return the JSON body of a request at an endpoint whose answers are read as a whole."""
        return endpoints.body(request, endpoint)

    def read_endpoint(
        self, endpoint: Endpoint, content: bytes, at: float, retokenize: endpoints.Retokenize
    ) -> Completion:
        """Return the answer of such an endpoint. Raises NotExact, and the errors of decoding or indexing."""
        return endpoints.READERS[endpoint](content, at, retokenize)

    def pool(self, request: CompletionRequest, task: Task, on_token: Callable[[int], None] | None) -> Completion:
        """Send one request for a pooled answer once, and return the answer, whose arrival is progress, as that of a
        token is. Raises as `complete`.
        """
        headers = completions.headers(request.rank, request.hand_over_ms)
        response, busy = self.posted(pooling.PATHS[task], pooling.body(request, task), headers, waiting(on_token))
        try:
            rows = as_rows(pooling.READERS[task](response.content))
        except UNREADABLE as problem:
            raise malformed(response, response.text, pooling.EXPECTED) from problem
        if on_token is not None:
            on_token(1)
        return Completion(tokens=(), finish_reason=None, cached_tokens=None, pooled=rows, busy=busy)

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """Return the JSON body of a generation request."""
        if self.content_shape is not None and content.has_content(request):
            return content.body(request, self.content_shape)
        return completions.body(request, named=self.names_tokens)

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Return a reader for one answer."""
        return Reader(on_token)

    def read(self, response: requests.Response, reader: Reader, request: CompletionRequest) -> Stage | None:
        """Read the answer. Return None at its end, or the request's stage if the client disconnects before.

        An answer with many more tokens than requested is not read to its end: it may have none.
        """
        abort = visible_abort(request)
        if self.is_whole(request):
            reader.take(response.text)
            reader.done = True
            return None
        stage = wait_for_disconnect(response, abort, self.stage, self.read_timeout)
        if stage is not None:
            return stage
        for event in events(response, reader.start):
            reader.take(event)
            if reader.overlong or reader.malformed is not None:
                return None
            if abort is not None and reader.count >= max(1, abort.after_tokens) and reader.finish_reason is None:
                return Stage.DECODE
        return None

    def is_whole(self, request: CompletionRequest) -> bool:
        """Return whether the answer to a request is one response. vLLM does not stream prompt logprobs."""
        return request.options.prompt_logprobs

    def stage(self) -> Stage:
        """Return the likely stage of the latest request, which has no token yet, by the engine's gauges."""
        now = self.gauges()
        if now.waiting:
            return Stage.QUEUED
        return Stage.PREFILL if now.running else Stage.UNSEEN

    def _finished(self, response: requests.Response, reader: Reader, aborted: Stage | None) -> Completion:
        if reader.malformed is not None:
            raise self._malformed(response, reader.malformed, reader.expected)
        if reader.error is not None:
            raise self._failed(reader.status, reader.error)
        if not reader.done and not reader.overlong and aborted is None:
            problem = self._malformed(response, reader.start.decode("utf-8", "replace"), STREAM)
            raise EngineDied(f"an answer ended early: {problem}") if reader.events else problem
        return reader.completion(aborted)

    def wait_dead(self, seconds: float) -> bool:
        """Return whether the engine terminates within a time: its sockets close before its process is reaped."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _failed(self, status: int, said: str) -> EngineError:
        """Return the error for a status of failure. If the engine crashed, the server may answer for a while."""
        said = safe_start(said)
        if status >= 500 and self.wait_dead(DEAD_SECONDS if ENGINE_DEAD in said else 2.0):
            return EngineDied(f"the engine terminated while it answered: {said[:200]}")
        return RequestRefused(status, said)

    def _malformed(self, response: requests.Response, body: str, expected: str) -> EngineError:
        """Return the error for an answer that cannot be read. If the engine crashed, that is the cause."""
        if self.wait_dead(2.0):
            return EngineDied("the engine's process has ended")
        return malformed(response, body, expected)

    def _connection_lost(self, problem: Exception) -> EngineError:
        dead = self.wait_dead(5.0)
        lost = "" if cannot_connect(problem) else ", or it broke the connection or sent no HTTP"
        what = "the engine's process has ended" if dead else f"cannot connect to {self.printable_url}{lost}"
        return EngineDied(f"{what} ({type(problem).__name__})")

    def _timed_out(self, path: str) -> EngineError:
        if self.wait_dead(0.5):
            return EngineDied("the engine's process has ended")
        return EngineSilent(f"no answer from {path} for {self.read_timeout:.0f} s while the engine still runs")

    def render(self, model: str, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the token ids of messages in the server's chat template. Raises RequestRefused without /tokenize."""
        body = {"model": model, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        return decoded(self.post("/tokenize", body), Tokens, 'the prompt\'s token ids ({"tokens": [...]})').tokens

    def tokens_of(self, model: str, text: str) -> tuple[int, ...]:
        """Return the token ids of a text without special tokens. Raises RequestRefused without /tokenize."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        return decoded(self.post("/tokenize", body), Tokens, 'the text\'s token ids ({"tokens": [...]})').tokens

    def scrape(self, path: str = METRICS_PATH) -> Families | None:
        """Return the metrics as family name -> samples, or None if the server publishes none."""
        response = self.get(path)
        if response.status_code != 200:
            return None
        return families_of(response, (*self.counters, *self.labelled))

    def metrics(self) -> Metrics:
        """Return the counters and gauges, summed over engine replicas; None for those that are not published."""
        return self.chosen(COUNTERS_PATH)

    def gauges(self) -> Metrics:
        """Return the numbers of running and waiting requests, with the cheapest scrape that the server supports."""
        return self.chosen(GAUGES_PATH)

    def chosen(self, path: str) -> Metrics:
        """Return the metrics at a path that chooses some, or all metrics if the server does not support it."""
        chosen = self.metrics_of(self.scrape(path)) if self.filters_metrics else Metrics()
        self.filters_metrics = chosen.running is not None
        return chosen if self.filters_metrics else self.metrics_of(self.scrape())

    def metrics_of(self, families: Families | None) -> Metrics:
        """Return the fields of `Metrics` that these families have."""
        samples = families or {}
        counters = self.counters.items()
        return Metrics(**{field: sum(v for _, v in samples[name]) for name, field in counters if samples.get(name)})

    def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Load or replace an adapter. Raises RequestRefused with the server's reason."""
        replacing = {"load_inplace": True} if in_place else {}
        self.post(self.load_path, {"lora_name": name, "lora_path": path, **replacing})

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises RequestRefused with the server's reason."""
        self.post(self.unload_path, {"lora_name": name})

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> None:
        """Reset the caches in `scope`, and not the prefix cache. vLLM's routes answer without a body. Raises
        RequestRefused.
        """
        for one in scope:
            self.post(SIDE_PATHS[one])

    def reset(self, scope: tuple[ResetScope, ...] = ()) -> tuple[bool, str]:
        """Request an empty cache, and that everything in `scope` is reset.

        Return whether the server confirms it, and its answer. Raises RequestRefused.
        """
        beside = tuple(one for one in scope if one in SIDE_PATHS)
        within = tuple(one for one in scope if one not in SIDE_PATHS)
        body = self.post(reset_path(within) if within else self.reset_path).text
        self.reset_beside(beside)
        return is_success(body), safe_start(body)


def is_success(body: str) -> bool:
    """Return whether a body is `{"success": true}`. Older servers answer 200 in any case (vllm PR#12284)."""
    try:
        answer = msgspec.json.decode(body)
    except UNREADABLE:
        return False
    return isinstance(answer, dict) and answer.get("success") is True


def waiting(on_token: Callable[[int], None] | None) -> Callable[[], None]:
    """Return what reports, while the client waits for a busy server, that the request is not stalled."""
    return (lambda: None) if on_token is None else (lambda: on_token(0))
