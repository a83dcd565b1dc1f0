"""Wraps any engine, checks what its adapter returns, and meters how long the engine was busy.

A third-party adapter can be trusted because this decorator says in English what it got wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    Engine,
    EngineShape,
    Message,
    Metrics,
    Served,
    Support,
)
from adapters.kv_events import Published
from adapters.provenance import WrongRead


class AdapterFault(Exception):
    """An adapter broke the protocol: the harness's side, not the engine's."""


class CheckedEngine:
    """An engine whose answers were checked for shape. `busy_seconds` is the time with a request in flight."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests = 0
        self.busy_seconds = 0.0
        self._in_flight = 0
        self._busy_since = 0.0
        self._lock = threading.Lock()
        missing = [c.value for c in Capability if c not in engine.capabilities]
        if missing:
            raise AdapterFault(f"adapter {engine.name} says nothing about: {', '.join(missing)}")

    @property
    def name(self) -> str:
        """The adapter's name."""
        return self.engine.name

    @property
    def version(self) -> str | None:
        """The engine's version."""
        return self.engine.version

    @property
    def base_model(self) -> str:
        """The base model's served name."""
        return self.engine.base_model

    @property
    def shape(self) -> EngineShape:
        """The engine's shape."""
        return self.engine.shape

    @property
    def config(self) -> Mapping[str, str]:
        """The engine's configuration."""
        return self.engine.config

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """The engine's capabilities."""
        return self.engine.capabilities

    def clock(self) -> float:
        """The engine's clock."""
        return self.engine.clock()

    def complete(self, request: CompletionRequest) -> Completion:
        """Complete and check the answer's shape. Raises AdapterFault when it is none."""
        self._enter(1)
        try:
            answer = self.engine.complete(request)
        finally:
            self._leave(1)
        check(self.name, answer)
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve and check each answer's shape. Raises AdapterFault when one is none."""
        self._enter(len(arrivals))
        try:
            served = self.engine.serve(arrivals, on_token, between)
        finally:
            self._leave(len(arrivals))
        if len(served) != len(arrivals):
            raise AdapterFault(f"adapter {self.name} returned {len(served)} results for {len(arrivals)} requests")
        for one in served:
            if isinstance(one.result, Completion):
                check(self.name, one.result)
        return served

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """What the chat template makes of messages."""
        return self.engine.render(messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter."""
        self.engine.load_adapter(name, path, in_place=in_place)

    def switch_adapter(self, name: str, path: str) -> None:
        """Switch an adapter on for every request."""
        self.engine.switch_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        self.engine.unload_adapter(name)

    def reset_cache(self) -> bool:
        """Reset the cache."""
        return self.engine.reset_cache()

    def metrics(self) -> Metrics:
        """Scrape the counters."""
        return self.engine.metrics()

    def take_events(self) -> Published:
        """Take the KV events. Raises AdapterFault when batches come back to front."""
        published = self.engine.take_events()
        numbers = [batch.sequence for batch in published.batches]
        if numbers != sorted(numbers):
            raise AdapterFault(f"adapter {self.name} returned batches of KV events in the order {numbers}")
        return published

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Whose KV was read."""
        return self.engine.wrong_reads()

    def alive(self) -> bool:
        """Whether the engine is there."""
        return self.engine.alive()

    def log_tail(self) -> str:
        """The log's end."""
        return self.engine.log_tail()

    def stop(self) -> None:
        """Stop it."""
        self.engine.stop()

    def _enter(self, count: int) -> None:
        with self._lock:
            self.requests += count
            if self._in_flight == 0:
                self._busy_since = time.monotonic()
            self._in_flight += count

    def _leave(self, count: int) -> None:
        with self._lock:
            self._in_flight -= count
            if self._in_flight == 0:
                self.busy_seconds += time.monotonic() - self._busy_since


def check(name: str, answer: Completion) -> None:
    """Raise AdapterFault when an answer cannot be any engine's. One of too many tokens can be: that is a finding."""
    for tokens in (answer.tokens, *answer.others):
        if any(token.id < 0 for token in tokens):
            raise AdapterFault(f"adapter {name} returned a negative token id")
    if answer.cached_tokens is not None and not answer.cached_tokens >= 0:
        raise AdapterFault(f"adapter {name} returned cached_tokens {answer.cached_tokens}")
