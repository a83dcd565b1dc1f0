"""Wraps any engine, checks what its adapter returns, and meters how long the engine was busy.

A third-party adapter can be trusted because this decorator says in English what it got wrong.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from adapters import complaints
from adapters.base import (
    Arrival,
    Capability,
    Completion,
    CompletionRequest,
    Engine,
    EngineError,
    EngineShape,
    Message,
    Metrics,
    RequestRefused,
    Served,
    Support,
)
from adapters.kv_events import Published
from adapters.provenance import WrongRead
from adapters.rare import Saves


class AdapterFault(Exception):
    """An adapter broke the protocol: the harness's side, not the engine's."""


class CheckedEngine:
    """An engine whose adapter was checked. `busy_seconds` is the time with a request in flight.

    Raises AdapterFault for what only the adapter can have got wrong; what an engine may have done passes.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests = 0
        self.busy_seconds = 0.0
        self._in_flight = 0
        self._busy_since = 0.0
        self._lock = threading.Lock()
        self._hold(complaints.of_adapter(engine))

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
        """Complete and check the answer. Raises AdapterFault when it is none."""
        self._enter(1)
        try:
            with self._own_errors("complete"):
                answer = self.engine.complete(request)
        finally:
            self._leave(1)
        self._hold(complaints.of_answer(answer, request))
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve and check each answer. Raises AdapterFault when one is none."""
        self._enter(len(arrivals))
        try:
            served = self.engine.serve(arrivals, on_token, between)
        finally:
            self._leave(len(arrivals))
        if len(served) != len(arrivals):
            raise AdapterFault(f"adapter {self.name} returned {len(served)} results for {len(arrivals)} requests")
        for one, arrival in zip(served, arrivals, strict=True):
            self._hold(complaints.of_served(one))
            if isinstance(one.result, Completion):
                self._hold(complaints.of_answer(one.result, arrival.request))
        return served

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """What the chat template makes of messages."""
        with self._own_errors("render"):
            return self.engine.render(messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load or replace an adapter."""
        with self._own_errors("load_adapter"):
            self.engine.load_adapter(name, path, in_place=in_place)

    def switch_adapter(self, name: str, path: str) -> None:
        """Switch an adapter on for every request."""
        with self._own_errors("switch_adapter"):
            self.engine.switch_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        with self._own_errors("unload_adapter"):
            self.engine.unload_adapter(name)

    def reset_cache(self) -> bool:
        """Reset the cache."""
        with self._own_errors("reset_cache"):
            done = self.engine.reset_cache()
        if not isinstance(done, bool):
            raise AdapterFault(f"adapter {self.name} returned {done!r} from reset_cache: it wants True or False")
        return done

    def save_state(self, name: str) -> int:
        """Save what is cached. Raises RequestRefused where the engine cannot."""
        return self._moved("save_state", name)

    def restore_state(self, name: str) -> int:
        """Restore what was saved. Raises RequestRefused where the engine cannot."""
        return self._moved("restore_state", name)

    def _moved(self, what: str, name: str) -> int:
        support = self.capabilities[Capability.SAVED_STATE]
        if support.present is not True:
            raise RequestRefused(501, support.evidence)
        if not isinstance(self.engine, Saves):
            claim = f"says that it saves what is cached ({support.evidence}), and has no {what}"
            raise AdapterFault(f"adapter {self.name} {claim}")
        with self._own_errors(what):
            tokens = getattr(self.engine, what)(name)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise AdapterFault(f"adapter {self.name} returned {tokens!r} from {what}: it wants a number of tokens")
        return tokens

    def metrics(self) -> Metrics:
        """Scrape the counters."""
        with self._own_errors("metrics"):
            read = self.engine.metrics()
        self._hold(complaints.of_metrics(read))
        return read

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

    def _hold(self, found: Iterator[str]) -> None:
        """Raise AdapterFault for the first complaint."""
        for complaint in found:
            name = getattr(self.engine, "name", type(self.engine).__name__)
            raise AdapterFault(f"adapter {name} {complaint}")

    @contextlib.contextmanager
    def _own_errors(self, what: str) -> Iterator[None]:
        """Let through what says something about the engine. Anything else would end a run instead of an example."""
        try:
            yield
        except EngineError:
            raise
        except Exception as problem:
            raise AdapterFault(
                f"adapter {self.name} let {type(problem).__name__} out of {what} ({problem}): an engine's troubles are "
                "told as EngineDied, EngineSilent or RequestRefused"
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
