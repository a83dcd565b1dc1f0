"""A wrapper for any engine that checks what its adapter returns, and measures how long the engine was busy.

It makes third-party adapters trustworthy: a value that an adapter must not return raises AdapterError with a plain
description.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from coldproof.adapters.protocol import violations
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.direct_scores import ScoresDirectly
from coldproof.adapters.protocol.engine import (
    Engine,
    EngineDied,
    EngineError,
    EngineSilent,
    RequestRefused,
    SavesState,
    Served,
)
from coldproof.adapters.protocol.engine_steps import EngineStep, RecordsSteps
from coldproof.adapters.protocol.kv_events import Published
from coldproof.adapters.protocol.lost_files import LosesFiles, Loss
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.own_code import OWN_CODE, own_failure_behind
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.request_time import RequestOverdue
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Message
from coldproof.adapters.protocol.resets import SCOPE_CAPABILITIES, ResetsBeside, ResetScope, ResetsMore
from coldproof.adapters.protocol.sessions import HoldsSessions
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.protocol.sides import HasSides, RestartsSides, Side
from coldproof.adapters.protocol.weights import ChangesWeights, PauseMode, Pauses, SleepPart, Sleeps, WeightRoute

PAUSES = {
    PauseMode.ABORT: Capability.PAUSE_ABORT,
    PauseMode.WAIT: Capability.PAUSE_WAIT,
    PauseMode.KEEP: Capability.PAUSE_KEEP,
}


class AdapterError(Exception):
    """An adapter violated the protocol of `engine.py`, or our own code failed in the engine's process.

    This is a bug of the adapter, not of the engine.
    """


class CheckedEngine:
    """An engine whose adapter is checked. `busy_seconds` is the time with at least one request in flight.

    The methods are those of `Engine`. They raise AdapterError for results that only a bug of the adapter explains.
    Wrong results that an engine may have produced pass: the checkers report those.
    """

    def __init__(self, engine: Engine, *, given: Mapping[Capability, Support] = MappingProxyType({})) -> None:
        """`given`: the capabilities that follow from the run around the engine, such as a second engine beside it."""
        self.engine, self._given = engine, dict(given)
        self.requests = 0
        self.busy_seconds = 0.0
        self._in_flight = 0
        self._busy_since = 0.0
        self._lock = threading.Lock()
        self._check(violations.of_adapter(engine))

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def version(self) -> str | None:
        return self.engine.version

    @property
    def base_model(self) -> str:
        return self.engine.base_model

    @property
    def shape(self) -> EngineShape:
        return self.engine.shape

    @property
    def config(self) -> Mapping[str, str]:
        return self.engine.config

    @property
    def capabilities(self) -> Mapping[Capability, Support]:
        return ChainMap(self._given, dict(self.engine.capabilities))

    def withdraw(self, capability: Capability, evidence: str) -> None:
        """Take a capability away that the engine turns out to lack."""
        self._given[capability] = Support(False, evidence)

    def clock(self) -> float:
        return self.engine.clock()

    def complete(self, request: CompletionRequest) -> Completion:
        with self._requests_in_flight(1), self._engine_errors_only("complete"):
            answer = self.engine.complete(request)
        self._check(violations.of_answer(answer, request))
        return answer

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        with self._requests_in_flight(len(arrivals)):
            served = self.engine.serve(arrivals, on_token, between)
        if len(served) != len(arrivals):
            raise AdapterError(f"adapter {self.name} returned {len(served)} results for {len(arrivals)} requests")
        for one, arrival in zip(served, arrivals, strict=True):
            self._check(violations.of_served(one))
            if isinstance(one.result, EngineError):
                self._check_own_code(one.result)
            if isinstance(one.result, Completion):
                self._check(violations.of_answer(one.result, arrival.request))
        return served

    def score(self, request: CompletionRequest) -> Completion:
        """Score a prompt outside the scheduler. Raises RequestRefused if the engine cannot."""
        engine = self._with(ScoresDirectly, Capability.DIRECT_SCORES)
        with self._engine_errors_only("score"):
            answer: Completion = engine.score(request)
        self._check(violations.of_answer(answer, request))
        return answer

    def render(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        with self._engine_errors_only("render"):
            return self.engine.render(messages)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        with self._engine_errors_only("load_adapter"):
            self.engine.load_adapter(name, path, in_place=in_place)

    def switch_adapter(self, name: str, path: str) -> None:
        with self._engine_errors_only("switch_adapter"):
            self.engine.switch_adapter(name, path)

    def unload_adapter(self, name: str) -> None:
        with self._engine_errors_only("unload_adapter"):
            self.engine.unload_adapter(name)

    def reset_cache(self) -> bool:
        with self._engine_errors_only("reset_cache"):
            done = self.engine.reset_cache()
        return self._checked_reset("reset_cache", done)

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Reset the prefix cache and what is in `scope`. Raises RequestRefused if the engine cannot."""
        self._refuse_unknown(scope)
        if not isinstance(self.engine, ResetsMore):
            raise AdapterError(f"adapter {self.name} can reset {', '.join(scope)} by its capabilities: no reset_more")
        with self._engine_errors_only("reset_more"):
            done = self.engine.reset_more(scope)
        return self._checked_reset("reset_more", done)

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        """Reset what is in `scope` only. Raises RequestRefused if the engine cannot."""
        self._refuse_unknown(scope)
        if not isinstance(self.engine, ResetsBeside):
            raise RequestRefused(501, f"adapter {self.name} resets {', '.join(scope)} with the prefix cache only")
        with self._engine_errors_only("reset_beside"):
            done = self.engine.reset_beside(scope)
        return self._checked_reset("reset_beside", done)

    def restart_side(self, side: Side) -> None:
        """Kill a side and start it again. Raises RequestRefused if the engine cannot."""
        support = self.capabilities[side.failures]
        if support.present is not True or not isinstance(self.engine, RestartsSides):
            raise RequestRefused(501, support.evidence)
        with self._engine_errors_only("restart_side"):
            self.engine.restart_side(side)

    def lose_files(self, loss: Loss) -> int:
        """Remove or cut the files of a tier; return their number. Raises RequestRefused if it has none."""
        engine = self._with(LosesFiles, Capability.TIER_FILES)
        with self._engine_errors_only("lose_files"):
            lost: int = engine.lose_files(loss)
        return lost

    def side(self, side: Side) -> CheckedEngine:
        """Return one of two engines. Raises RequestRefused if they cannot be reached on their own."""
        return CheckedEngine(self._with(HasSides, Capability.ONE_SIDE_FIRST).side(side))

    def _refuse_unknown(self, scope: tuple[ResetScope, ...]) -> None:
        for support in (self.capabilities[SCOPE_CAPABILITIES[one]] for one in scope):
            if support.present is not True:
                raise RequestRefused(501, support.evidence)

    def _checked_reset(self, method: str, done: object) -> bool:
        if not isinstance(done, bool):
            raise AdapterError(f"adapter {self.name} returned {done!r} from {method}: expected True or False")
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

    def update_weights(self, path: str, route: WeightRoute) -> None:
        """Load the weights in a folder. Raises RequestRefused if the engine cannot change its weights."""
        engine = self._with(ChangesWeights, Capability.WEIGHT_UPDATES)
        with self._engine_errors_only("update_weights"):
            engine.update_weights(path, route)

    def weights_checksum(self) -> str | None:
        """Return a checksum of the weights; None if the engine has none."""
        engine = self._with(ChangesWeights, Capability.WEIGHT_UPDATES)
        with self._engine_errors_only("weights_checksum"):
            checksum: str | None = engine.weights_checksum()
        return checksum

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        """Pause generation. Raises RequestRefused if the engine has no such pause."""
        engine = self._with(Pauses, PAUSES[mode])
        with self._engine_errors_only("pause"):
            engine.pause(mode, clear=clear)

    def resume(self) -> None:
        """Resume generation."""
        if isinstance(self.engine, Pauses):
            with self._engine_errors_only("resume"):
                self.engine.resume()

    def sleep(self, level: int) -> None:
        """Let the engine sleep. Raises RequestRefused if it cannot, at this level."""
        engine = self._with(Sleeps, Capability.SLEEP_DISCARDS if level > 1 else Capability.SLEEP)
        with self._engine_errors_only("sleep"):
            engine.sleep(level)

    def wake(self, part: SleepPart = SleepPart.ALL) -> None:
        """Wake a part of the engine up."""
        if isinstance(self.engine, Sleeps):
            with self._engine_errors_only("wake"):
                self.engine.wake(part)

    def close_session(self, name: str, *, aborted: bool) -> None:
        """End a session. Raises RequestRefused if the engine has none."""
        engine = self._with(HoldsSessions, Capability.SESSIONS)
        with self._engine_errors_only("close_session"):
            engine.close_session(name, aborted=aborted)

    def _with(self, protocol: Any, capability: Capability) -> Any:
        """Return the engine as one with this protocol. Raises RequestRefused without the capability."""
        support = self.capabilities[capability]
        if support.present is not True:
            raise RequestRefused(501, support.evidence)
        if not isinstance(self.engine, protocol):
            claim = f"reports the capability {capability!s} ({support.evidence}) but lacks {protocol.__name__}"
            raise AdapterError(f"adapter {self.name} {claim}")
        return self.engine

    def metrics(self) -> Metrics:
        with self._engine_errors_only("metrics"):
            read = self.engine.metrics()
        self._check(violations.of_metrics(read))
        return read

    def take_events(self) -> Published:
        """Take the KV events. Raises AdapterError if the batches are not in order."""
        with self._engine_errors_only("take_events"):
            published = self.engine.take_events()
        numbers = [batch.sequence for batch in published.batches]
        if numbers != sorted(numbers):
            raise AdapterError(f"adapter {self.name} returned batches of KV events in the order {numbers}")
        return published

    def wrong_reads(self) -> tuple[WrongRead, ...]:
        with self._engine_errors_only("wrong_reads"):
            return self.engine.wrong_reads()

    def take_steps(self) -> tuple[EngineStep, ...] | None:
        """Return and remove the recorded steps; None if the engine records none."""
        if not isinstance(self.engine, RecordsSteps):
            return None
        with self._engine_errors_only("take_steps"):
            return self.engine.take_steps()

    def alive(self) -> bool:
        return self.engine.alive()

    def log_tail(self) -> str:
        return self.engine.log_tail()

    def stop(self) -> None:
        self.engine.stop()

    def _check(self, found: Iterator[str]) -> None:
        """Raise AdapterError for the first violation."""
        for violation in found:
            name = getattr(self.engine, "name", type(self.engine).__name__)
            raise AdapterError(f"adapter {name} {violation}")

    def _check_own_code(self, problem: EngineError) -> None:
        """Raise AdapterError if our own code in the engine's process caused an error of the engine."""
        where = own_failure_behind(problem)
        if not where and (isinstance(problem, (EngineDied, EngineSilent)) or server_error(problem)):
            first, _, _ = self.engine.log_tail().partition("\n")
            where = first.removeprefix(f"{OWN_CODE}: ") if first.startswith(OWN_CODE) else ""
        if where:
            raise AdapterError(f"{OWN_CODE}, in {where}: {problem}") from problem

    @contextlib.contextmanager
    def _engine_errors_only(self, method: str) -> Iterator[None]:
        """Raise AdapterError for every exception that is not an EngineError."""
        try:
            yield
        except EngineError as problem:
            self._check_own_code(problem)
            raise
        except RequestOverdue:
            raise
        except Exception as problem:
            raise AdapterError(
                f"adapter {self.name} raised {type(problem).__name__} in {method} ({problem}): an adapter reports "
                "errors of the engine as EngineDied, EngineSilent, RequestRefused or MalformedAnswer"
            ) from problem

    @contextlib.contextmanager
    def _requests_in_flight(self, count: int) -> Iterator[None]:
        """Count requests, and the time with at least one of them."""
        with self._lock:
            self.requests += count
            if self._in_flight == 0:
                self._busy_since = time.monotonic()
            self._in_flight += count
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= count
                if self._in_flight == 0:
                    self.busy_seconds += time.monotonic() - self._busy_since


def server_error(problem: EngineError) -> bool:
    """Return whether the engine answered that the error is its own."""
    return isinstance(problem, RequestRefused) and problem.status >= 500
