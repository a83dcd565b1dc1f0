"""The OpenAI-compatible wire, with the extensions that prefix-cache engines add to it.

One class speaks HTTP for the spawned and the attached engine alike. A generation is sent exactly once; only readiness
and scrapes, which change nothing in the engine, are retried. The API key lives in one header and nowhere else.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
import tenacity
from prometheus_client.parser import text_string_to_metric_families

from adapters.base import (
    Completion,
    CompletionRequest,
    EngineDied,
    EngineError,
    EngineSilent,
    Metrics,
    RequestRefused,
    Token,
)
from adapters.redact import KEY_VARIABLE

CONNECT_SECONDS = 10.0
# Between two bytes of an answer. A tiny model answers in a tenth of a second and a loaded machine in a few; a minute
# of nothing is an engine that hangs.
PATIENCE_SECONDS = 60.0
COUNTERS = {
    "vllm:prefix_cache_queries": "queried_tokens",
    "vllm:prefix_cache_hits": "hit_tokens",
    "vllm:num_preemptions": "preemptions",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "pool_usage",
}
SCRAPED = (*COUNTERS, "vllm:cache_config", "vllm:lora_requests_info")


class Wire:
    """HTTP to one server. Sessions are per thread: `requests` sessions are not safe to share."""

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
        return self.session().get(self.url + path, timeout=(CONNECT_SECONDS, self.patience))

    def post(self, path: str, body: dict[str, Any] | None = None) -> requests.Response:
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

    def complete(
        self, request: CompletionRequest, on_token: Callable[[int], None] | None = None, **extra: object
    ) -> Completion:
        """Stream one greedy completion. Raises RequestRefused, EngineDied or EngineSilent."""
        body: dict[str, Any] = {
            "model": request.model,
            "prompt": list(request.prompt),
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "seed": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **extra,
        }
        if request.cache_salt is not None:
            body["cache_salt"] = request.cache_salt
        if request.logprobs:
            body |= {"logprobs": 2, "return_tokens_as_token_ids": True}
        reader = StreamReader(on_token)
        try:
            with self.session().post(
                self.url + "/v1/completions", json=body, stream=True, timeout=(CONNECT_SECONDS, self.patience)
            ) as response:
                if response.status_code >= 400:
                    raise RequestRefused(response.status_code, response.text)
                for event in events(response):
                    reader.take(event)
        except requests.RequestException as problem:
            # A time-out in the middle of a stream arrives as a ConnectionError around urllib3's ReadTimeoutError.
            if isinstance(problem, requests.ReadTimeout) or "Read timed out" in str(problem):
                raise self._silent("/v1/completions") from problem
            raise self._gone(problem) from problem
        return self._finished(reader)

    def _finished(self, reader: StreamReader) -> Completion:
        if reader.error is not None:
            if not self.wait_dead(2.0):
                raise RequestRefused(500, reader.error)
            raise EngineDied(f"the engine died while answering: {reader.error[:200]}")
        if not reader.done:
            raise self._gone(RuntimeError("the stream ended without [DONE]"))
        return Completion(
            tokens=tuple(reader.tokens), finish_reason=reader.finish_reason, cached_tokens=reader.cached_tokens
        )

    def wait_dead(self, seconds: float) -> bool:
        """Whether the engine turns out to be gone within a moment: a socket breaks before its process is reaped."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _gone(self, problem: Exception) -> EngineError:
        dead = self.wait_dead(2.0)
        what = "the engine's process has ended" if dead else f"cannot talk to {self.printable_url}"
        return EngineDied(f"{what} ({type(problem).__name__})")

    def _silent(self, path: str) -> EngineError:
        if self.wait_dead(0.5):
            return EngineDied("the engine's process has ended")
        return EngineSilent(f"no answer from {path} for {self.patience:.0f} s while the engine still runs")

    def scrape(self) -> dict[str, list[tuple[dict[str, str], float]]] | None:
        """/metrics as family name -> samples, or None where there is none."""
        response = self.get("/metrics")
        if response.status_code != 200:
            return None
        families: dict[str, list[tuple[dict[str, str], float]]] = {}
        # A server publishes hundreds of histogram lines; parsing them all would cost more than a request.
        wanted = "\n".join(line for line in response.text.splitlines() if any(name in line for name in SCRAPED))
        for family in text_string_to_metric_families(wanted + "\n"):
            samples = [(s.labels, s.value) for s in family.samples if not s.name.endswith(("_created", "_bucket"))]
            families[family.name] = samples
        return families

    def metrics(self) -> Metrics:
        """The counters of `Metrics`, summed over engine replicas; None for those not published."""
        families = self.scrape() or {}
        values = {field: sum(v for _, v in families[name]) for name, field in COUNTERS.items() if families.get(name)}
        return Metrics(**values)


class StreamReader:
    """Collects the events of one streamed completion."""

    def __init__(self, on_token: Callable[[int], None] | None) -> None:
        self.on_token = on_token
        self.began = time.monotonic()
        self.tokens: list[Token] = []
        self.finish_reason: str | None = None
        self.cached_tokens: int | None = None
        self.error: str | None = None
        self.done = False

    def take(self, data: str) -> None:
        """One `data:` payload."""
        if data == "[DONE]":
            self.done = True
            return
        try:
            self.take_event(json.loads(data))
        except (ValueError, TypeError, AttributeError, KeyError) as problem:
            self.error = f"an event that is none ({type(problem).__name__}): {data[:200]}"

    def take_event(self, event: dict[str, Any]) -> None:
        """One decoded event. Raises what indexing into something of another shape raises."""
        if "error" in event:
            self.error = json.dumps(event["error"])
            return
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            self.cached_tokens = int(details["cached_tokens"])
        for choice in event.get("choices", ()):
            self.add(choice)

    def add(self, choice: dict[str, Any]) -> None:
        """One choice of an event: zero or more tokens."""
        at = round(time.monotonic() - self.began, 6)
        scores = choice.get("logprobs") or {}
        chosen, top = scores.get("token_logprobs") or [], scores.get("top_logprobs") or []
        for i, token in enumerate(choice.get("token_ids") or ()):
            best = sorted(top[i].values(), reverse=True)[:2] if i < len(top) and top[i] else []
            self.tokens.append(
                Token(
                    id=int(token),
                    at=at,
                    logprob=chosen[i] if i < len(chosen) else None,
                    gap=best[0] - best[1] if len(best) == 2 else None,
                )
            )
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if self.on_token is not None:
            self.on_token(len(self.tokens))


def events(response: requests.Response) -> Iterator[str]:
    """The `data:` payloads of a server-sent event stream."""
    for line in response.iter_lines(chunk_size=None):  # as chunks arrive: one event a chunk
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8", "replace")
