"""The OpenAI-compatible wire, with the extensions that prefix-cache engines add to it.

One class speaks HTTP for the spawned and the attached engine alike. A generation is sent exactly once; only readiness
and scrapes, which change nothing in the engine, are retried. The API key lives in one header and nowhere else.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import requests
import tenacity
from prometheus_client.parser import text_string_to_metric_families

from adapters import completions
from adapters.base import (
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineSilent,
    Message,
    Metrics,
    RequestRefused,
    Stage,
)
from adapters.completions import Reader
from adapters.hang_up import hangs_up
from adapters.redact import KEY_VARIABLE
from adapters.tiers import FAILED_LOADS_COUNTER

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 60.0  # for what a server answers without its engine; a starved one has taken more than 20
# Between two bytes of one answer, behind whatever queue. Whoever sends several requests watches for stalls long before.
PATIENCE_SECONDS = 180.0
COUNTERS = {
    "vllm:prefix_cache_queries": "queried_tokens",
    "vllm:prefix_cache_hits": "hit_tokens",
    "vllm:external_prefix_cache_queries": "external_queried_tokens",
    "vllm:external_prefix_cache_hits": "external_hit_tokens",
    FAILED_LOADS_COUNTER: "failed_loads",
    "vllm:num_preemptions": "preemptions",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "pool_usage",
}
METRICS_PATH = "/metrics"
# A Prometheus client that is mounted as a whole answers for the names it is asked for, in a fifth of the time that vLLM
# takes for all. The slash passes vLLM's own handler by, which knows no names and answers for all of them.
GAUGES_PATH = f"{METRICS_PATH}/?" + urlencode(
    [("name[]", f"vllm:num_requests_{what}") for what in ("running", "waiting")]
)
Families = dict[str, list[tuple[dict[str, str], float]]]


class Wire:
    """HTTP to one server. Sessions are per thread: `requests` sessions are not safe to share.

    Who speaks another wire overrides the paths and `body`, `reader`, `reset` and `metrics`.
    """

    generate_path: str | None = None  # where the kind of request does not say
    counters: Mapping[str, str] = COUNTERS  # metric family -> field of `Metrics`
    labelled: tuple[str, ...] = ("vllm:cache_config", "vllm:lora_requests_info")
    answers_by_name = True  # until it turns out not to
    reset_path = "/reset_prefix_cache"
    load_path, unload_path = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

    def __init__(self, url: str, *, alive: Callable[[], bool], patience: float = PATIENCE_SECONDS) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.alive = alive
        self.patience = patience
        self._local = threading.local()

    @property
    def printable_url(self) -> str:
        """The URL without any user name or password in it."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def session(self) -> requests.Session:
        """This thread's session, which reads no proxy settings or netrc: those would answer in the engine's place."""
        if not hasattr(self._local, "session"):
            session = requests.Session()
            session.trust_env = urlsplit(self.url).scheme == "https"
            key = os.environ.get(KEY_VARIABLE)
            if key:
                session.headers["Authorization"] = f"Bearer {key}"
            self._local.session = session
        held: requests.Session = self._local.session
        return held

    def get(self, path: str) -> requests.Response:
        """GET with retries: it changes nothing in the engine."""
        try:
            return self._get(path)
        except requests.RequestException as problem:
            raise self._gone(problem) from problem

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(requests.ConnectionError),
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_fixed(0.3),
        reraise=True,
    )
    def _get(self, path: str) -> requests.Response:
        if not self.alive():
            raise EngineDied("the engine's process has ended")
        return self.session().get(self.url + path, timeout=(CONNECT_SECONDS, min(LOOK_SECONDS, self.patience)))

    def post(self, path: str, body: dict[str, Any] | list[Any] | None = None) -> requests.Response:
        """POST once. Raises RequestRefused for an error status, EngineDied or EngineSilent for the wire."""
        try:
            response = self.session().post(self.url + path, json=body, timeout=(CONNECT_SECONDS, self.patience))
        except requests.ReadTimeout as problem:
            raise self._silent(path) from problem
        except requests.RequestException as problem:
            raise self._gone(problem) from problem
        if response.status_code >= 400:
            raise RequestRefused(response.status_code, response.text)
        return response

    def complete(self, request: CompletionRequest, on_token: Callable[[int], None] | None = None) -> Completion:
        """Send one generation, once, and read its answer; hang up where the request says so.

        Raises RequestRefused, EngineDied or EngineSilent.
        """
        path, reader, aborted = self.generate_path or completions.path(request), self.reader(on_token), None
        try:
            with self.session().post(
                self.url + path, json=self.body(request), stream=True, timeout=(CONNECT_SECONDS, self.patience)
            ) as response:
                if response.status_code >= 400:
                    raise RequestRefused(response.status_code, response.text)
                aborted = self.read(response, reader, request)
        except requests.RequestException as problem:
            # A time-out in the middle of a stream arrives as a ConnectionError around urllib3's ReadTimeoutError.
            if isinstance(problem, requests.ReadTimeout) or "Read timed out" in str(problem):
                raise self._silent(path) from problem
            raise self._gone(problem) from problem
        return self._finished(reader, aborted)

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """What is said there."""
        return completions.body(request)

    def reader(self, on_token: Callable[[int], None] | None) -> Reader:
        """Reads one answer."""
        return Reader(on_token)

    def read(self, response: requests.Response, reader: Reader, request: CompletionRequest) -> Stage | None:
        """Read to the end (None), or up to where the client hangs up: how far the engine had come by then."""
        abort = request.abort
        if request.surface.prompt_logprobs:
            reader.take(response.text)
            reader.done = True
            return None
        given_up = hangs_up(response, abort, self.stage, self.patience)
        if given_up is not None:
            return given_up
        for event in events(response):
            reader.take(event)
            if abort is not None and reader.count >= max(1, abort.after_tokens) and reader.finish_reason is None:
                return Stage.DECODE
        return None

    def stage(self) -> Stage:
        """Where a request that has no token yet most likely is, by the engine's gauges: it was the last to come."""
        now = self.gauges()
        if now.waiting:
            return Stage.QUEUED
        return Stage.PREFILL if now.running else Stage.UNSEEN

    def _finished(self, reader: Reader, aborted: Stage | None) -> Completion:
        if reader.error is not None:
            if reader.status < 500 or not self.wait_dead(2.0):
                raise RequestRefused(reader.status, reader.error)
            raise EngineDied(f"the engine died while answering: {reader.error[:200]}")
        if not reader.done and aborted is None:
            raise self._gone(RuntimeError("the stream ended without [DONE]"))
        return reader.completion(aborted)

    def wait_dead(self, seconds: float) -> bool:
        """Whether the engine turns out to be gone within a moment: a socket breaks before its process is reaped."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _gone(self, problem: Exception) -> EngineError:
        dead = self.wait_dead(5.0)
        what = "the engine's process has ended" if dead else f"cannot talk to {self.printable_url}"
        return EngineDied(f"{what} ({type(problem).__name__})")

    def _silent(self, path: str) -> EngineError:
        if self.wait_dead(0.5):
            return EngineDied("the engine's process has ended")
        return EngineSilent(f"no answer from {path} for {self.patience:.0f} s while the engine still runs")

    def render(self, model: str, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """What the server's chat template makes of messages. Raises RequestRefused where it does not tell."""
        said = {"model": model, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        response = self.post("/tokenize", said)
        try:
            return tuple(int(i) for i in response.json()["tokens"])
        except (ValueError, TypeError, KeyError) as problem:
            raise RequestRefused(response.status_code, f"/tokenize tells no tokens: {response.text[:200]}") from problem

    def scrape(self, path: str = METRICS_PATH) -> Families | None:
        """/metrics as family name -> samples, or None where there is none."""
        response = self.get(path)
        if response.status_code != 200:
            return None
        families: Families = {}
        wanted_names = (*self.counters, *self.labelled)
        # A server publishes hundreds of histogram lines; parsing them all would cost more than a request.
        wanted = "\n".join(line for line in response.text.splitlines() if any(name in line for name in wanted_names))
        for family in text_string_to_metric_families(wanted + "\n"):
            samples = [(s.labels, s.value) for s in family.samples if not s.name.endswith(("_created", "_bucket"))]
            families[family.name] = samples
        return families

    def metrics(self) -> Metrics:
        """The counters of `Metrics`, summed over engine replicas; None for those not published."""
        return self.counted(self.scrape())

    def gauges(self) -> Metrics:
        """Who runs and who waits, by a look that is as short as the server knows how to make it."""
        told = self.counted(self.scrape(GAUGES_PATH)) if self.answers_by_name else Metrics()
        self.answers_by_name = told.running is not None
        return told if self.answers_by_name else self.metrics()

    def counted(self, families: Families | None) -> Metrics:
        """Those of our fields that are among them."""
        told = families or {}
        counters = self.counters.items()
        return Metrics(**{field: sum(v for _, v in told[name]) for name, field in counters if told.get(name)})

    def reset(self) -> tuple[bool, str]:
        """Ask for an empty cache: whether the server says that it did it, and its words. Raises RequestRefused."""
        body = self.post(self.reset_path).text
        return is_success(body), body


def is_success(body: str) -> bool:
    """Older servers answer 200 whatever they did (vllm PR#12284), so only `{"success": true}` counts."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("success") is True


def events(response: requests.Response) -> Iterator[str]:
    """The `data:` payloads of a server-sent event stream."""
    for line in response.iter_lines(chunk_size=None):  # as chunks arrive: one event a chunk
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8", "replace")
