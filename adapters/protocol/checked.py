"""A wrapper for any engine that checks what its adapter returns, and measures how long the engine was busy.

It makes third-party adapters trustworthy: a value that an adapter must not return raises AdapterError with a plain
description.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from coldproof.adapters.protocol import violations
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Engine, EngineError, RequestRefused, Served
from coldproof.adapters.protocol.kv_events import Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.optional import SavesState
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Message
from coldproof.adapters.protocol.shape import EngineShape


class AdapterError(Exception):
    """An adapter violated the protocol of `engine.py`. This is a bug of the adapter, not of the engine."""


class CheckedEngine:
    """An engine whose adapter is checked. `busy_seconds` is the time with at least one request in flight.

    Methods raise AdapterError for results that only a bug of the adapter explains. Wrong results that an engine may
    have produced pass: the checkers report those.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests = 0
        self.busy_seconds = 0.0
        self._in_flight = 0
        self._busy_since = 0.0
        self._lock = threading.Lock()
        self._check(violations.of_adapter(engine))

    @property
    def name(self) -> str:
        """Return the adapter's name."""
        return self.engine.name

    @property
    def version(self) -> str | None:
        """Return the engine's version."""
        return self.engine.version

    @property
    def base_model(self) -> str:
        """Return the base model's served name."""
        return self.engine.base_model

    @property
    def shape(self) -> EngineShape:
        """Return the engine's sizes and limits."""
        return self.engine.shape

    @property
    def config(self) -> Mapping[str, str]:
        """Return the engine's configuration."""
        return self.engine.config

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        """Return the engine's capabilities."""
        return self.engine.capabilities

    def clock(self) -> float:
        """Return the engine's clock, in seconds."""
        return self.engine.clock()

    def complete(self, request: CompletionRequest) -> Completion:
        """Complete a request and check the answer. Raises AdapterError if the answer is invalid."""
        self._enter(1)
        try:
            with self._engine_errors_only("complete"):
                answer = self.engine.complete(request)
        finally:
            self._leave(1)
        self._check(violations.of_answer(answer, request))
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve requests and check each answer. Raises AdapterError if one is invalid."""
        self._enter(len(arrivals))
        try:
            served = self.engine.serve(arrivals, on_token, between)
        finally:
            self._leave(len(arrivals))
        if len(served) != len(arrivals):
            raise AdapterError(f"adapter {self.name} returned {len(served)} results for {len(arrivals)} requests")
        for one, arrival in zip(served, arrivals, strict=True):
            self._check(violations.of_served(one))
            if isinstance(one.result, Completion):
                self._check(violations.of_answer(one.result, arrival.request))
        return served

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the token ids of messages in the chat template."""
        with self._engine_errors_only("render"):
            return self.engine.render(messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter."""
        with self._engine_errors_only("load_adapter"):
            self.engine.load_adapter(name, path, in_place=in_place)

    def switch_adapter(self, name: str, path: str) -> None:
        """Switch on an adapter for every request."""
        with self._engine_errors_only("switch_adapter"):
            self.engine.switch_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        with self._engine_errors_only("unload_adapter"):
            self.engine.unload_adapter(name)

    def reset_cache(self) -> bool:
        """Reset the cache. Return whether the engine reports success."""
        with self._engine_errors_only("reset_cache"):
            done = self.engine.reset_cache()
        if not isinstance(done, bool):
            raise AdapterError(f"adapter {self.name} returned {done!r} from reset_cache: expected True or False")
        return done

    def save_state(self, name: str) -> int:
        """Save the cache and return the number of tokens. Raises RequestRefused if the engine cannot."""
        return self._transfer_state("save_state", name)

    def restore_state(self, name: str) -> int:
        """Restore a saved cache and return the number of tokens. Raises RequestRefused if the engine cannot."""
        return self._transfer_state("restore_state", name)

    def _transfer_state(self, method: str, name: str) -> int:
        support = self.capabilities[Capability.SAVED_STATE]
        if support.present is not True:
            raise RequestRefused(501, support.evidence)
        if not isinstance(self.engine, SavesState):
            claim = f"reports the capability {Capability.SAVED_STATE!s} ({support.evidence}) but has no {method}"
            raise AdapterError(f"adapter {self.name} {claim}")
        with self._engine_errors_only(method):
            tokens = getattr(self.engine, method)(name)
        if not violations.is_count(tokens):
            raise AdapterError(f"adapter {self.name} returned {tokens!r} from {method}: expected a number of tokens")
        return int(tokens)

    def metrics(self) -> Metrics:
        """Scrape the counters and gauges."""
        with self._engine_errors_only("metrics"):
            read = self.engine.metrics()
        self._check(violations.of_metrics(read))
        return read

    def take_events(self) -> Published:
        """Take the KV events. Raises AdapterError if the batches are not in order."""
        published = self.engine.take_events()
        numbers = [batch.sequence for batch in published.batches]
        if numbers != sorted(numbers):
            raise AdapterError(f"adapter {self.name} returned batches of KV events in the order {numbers}")
        return published

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        """Return the wrong KV reads that the engine reports."""
        return self.engine.wrong_reads()

    def alive(self) -> bool:
        """Return whether the engine is alive."""
        return self.engine.alive()

    def log_tail(self) -> str:
        """Return the last lines of the engine's log."""
        return self.engine.log_tail()

    def stop(self) -> None:
        """Stop the engine."""
        self.engine.stop()

    def _check(self, found: Iterator[str]) -> None:
        """Raise AdapterError for the first violation."""
        for violation in found:
            name = getattr(self.engine, "name", type(self.engine).__name__)
            raise AdapterError(f"adapter {name} {violation}")

    @contextlib.contextmanager
    def _engine_errors_only(self, method: str) -> Iterator[None]:
        """Raise AdapterError for every exception that is not an EngineError."""
        try:
            yield
        except EngineError:
            raise
        except Exception as problem:
            raise AdapterError(
                f"adapter {self.name} raised {type(problem).__name__} in {method} ({problem}): an adapter reports "
                "errors of the engine as EngineDied, EngineSilent, RequestRefused or MalformedAnswer"
            ) from problem

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
