"""Serve requests on an engine that its caller steps. Time is counted in steps.

Each arrival and each client disconnect happens at its step, and no wall clock is read. A run is therefore exactly
repeatable.
"""

from __future__ import annotations

import abc
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from coldproof.adapters.protocol.engine import EngineDied, EngineError, EngineSilent, RequestRefused, Served
from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Stage, Token

MOST_STEPS = 100_000  # that are kept if nobody takes them
STEP_MS = 10  # milliseconds of the engine's own clock in one step


def seconds(steps: int) -> float:
    """Return a number of steps in seconds of the engine's own clock."""
    return steps * STEP_MS / 1000


class SteppedRequest(abc.ABC):
    """A request that the engine accepted. `step`, `ended`: the steps at which it was sent and ended.

    `tokens`: those of its (first) answer so far.
    """

    def __init__(self, request: CompletionRequest, step: int) -> None:
        self.request, self.step = request, step
        self.tokens: list[Token] = []
        self.ended: int | None = None
        self.finish_reason: str | None = None
        self.aborted: Stage | None = None

    @property
    def count(self) -> int:
        """Return the number of tokens so far."""
        return len(self.tokens)

    @abc.abstractmethod
    def stage(self) -> Stage:
        """Return the stage of the request in the engine."""


Live = TypeVar("Live", bound=SteppedRequest)


class SteppedEngine(Protocol[Live]):
    """An engine that makes progress only when it is stepped. `steps`: the number of steps so far.

    An adapter with this base class has `clock`, `complete`, `serve` and `entered` from here. It sets `steps` (0),
    `_failure` (why the engine has terminated; "" while it runs) and `_lock` when it starts, and has the methods below.
    """

    steps: int
    _failure: str
    _lock: AbstractContextManager[object]

    def clock(self) -> float:
        """Return the engine's time in seconds, computed from the number of steps."""
        return seconds(self.steps)

    def complete(self, request: CompletionRequest) -> Completion:
        """Serve one request as a burst of one. Raises the EngineError that ended it, if any."""
        (served,) = self.serve([Arrival(request)], lambda _number, _count: None, lambda: None)
        if isinstance(served.result, EngineError):
            raise served.result
        return served.result

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Step until all requests are over, and call `between` after each step. See `Engine.serve`.

        An offset is rounded up to a whole step. If the engine is lost, its error is the result of all unfinished
        requests.
        """
        burst = SteppedBurst(self, arrivals)
        try:
            while burst.waiting or burst.live:
                try:
                    burst.advance()
                except (EngineDied, EngineSilent) as loss:
                    burst.lose(loss)
                    break
                burst.report(on_token)
                between()
        finally:
            burst.close()
        return [burst.served[number] for number in range(len(arrivals))]

    @contextlib.contextmanager
    def entered(self) -> Iterator[Any]:
        """Hold the engine for one pass. Raises EngineDied if it has terminated."""
        with self._lock:
            if self._failure:
                raise EngineDied(self._failure)
            yield

    @abc.abstractmethod
    def send(self, request: CompletionRequest) -> Live:
        """Give the engine a request. Raises RequestRefused if the engine does not accept it."""

    @abc.abstractmethod
    def step(self) -> None:
        """Step once: raise `steps` by one, and record the results in the requests.

        Raises EngineDied or EngineSilent if the step fails.
        """

    @abc.abstractmethod
    def disconnect(self, request: Live, /) -> None:
        """Abort a request whose client disconnects."""

    @abc.abstractmethod
    def finished(self, request: Live, /) -> Completion | EngineError:
        """Return the result of a request that has ended."""

    @abc.abstractmethod
    def close_burst(self, unfinished: Sequence[Live], /) -> None:
        """Abort the requests that a burst left unfinished, and clean up after the burst."""


class StepRecords:
    """What a scheduler did in its steps, until it is taken. `targets`: of the requests in prefill."""

    def __init__(self) -> None:
        self.targets: dict[str, int] = {}
        self.evicted = self.evicted_first = 0
        self.recorded: deque[EngineStep] = deque(maxlen=MOST_STEPS)

    def add(self, step: EngineStep) -> None:
        """Record a step, unless requests only decode in it."""
        self.evicted = self.evicted_first = 0
        for chunk in step.chunks:
            if chunk.end >= chunk.target:
                del self.targets[chunk.request]
        if step.admitted or step.chunks or step.evicted:
            self.recorded.append(step)

    def take(self) -> tuple[EngineStep, ...]:
        """Return and remove the recorded steps."""
        taken = tuple(self.recorded)
        self.recorded.clear()
        return taken


class SteppedBurst(Generic[Live]):
    """The requests of one burst, by number: those not yet sent, those in the engine, and the results of the others."""

    def __init__(self, engine: SteppedEngine[Live], arrivals: Sequence[Arrival]) -> None:
        self.engine, self.start = engine, engine.steps
        # By number: of two that are due in one step, the first is sent first, as their equal times say.
        self.waiting = dict(enumerate(arrivals))
        self.live: dict[int, Live] = {}
        self.reported = dict.fromkeys(self.waiting, 0)  # the count of the last `on_token` call
        self.served: dict[int, Served] = {}

    def advance(self) -> None:
        """Send the requests that are due, and step once. Clients that are due disconnect before or after the step."""
        with self.engine.entered():
            elapsed_ms = (self.engine.steps - self.start) * STEP_MS
            for number in [number for number, arrival in self.waiting.items() if arrival.offset_ms <= elapsed_ms]:
                self.send(number)
            self.disconnect()
            self.engine.step()
            self.disconnect()

    def send(self, number: int) -> None:
        """Give the engine a request, or record why the engine refused it."""
        try:
            self.live[number] = self.engine.send(self.waiting[number].request)
        except RequestRefused as refusal:
            self.served[number] = self.outcome(refusal, None)
        del self.waiting[number]

    def disconnect(self) -> None:
        """Abort the requests whose clients disconnect now."""
        for request in self.live.values():
            if disconnects(request, self.engine.steps):
                request.aborted, request.ended = request.stage(), self.engine.steps
                self.engine.disconnect(request)

    def report(self, on_token: Callable[[int, int], None]) -> None:
        """Report new tokens, and record the results of requests that have ended."""
        for number, request in list(self.live.items()):
            if request.count > self.reported[number]:
                self.reported[number] = request.count
                on_token(number, request.count)
            if request.ended is not None:
                self.served[number] = self.outcome(self.engine.finished(request), self.live.pop(number))

    def lose(self, loss: EngineError) -> None:
        """Record the loss of the engine as the result of all unfinished requests."""
        for number in (*self.waiting, *self.live):
            self.served[number] = self.outcome(loss, self.live.get(number))

    def outcome(self, result: Completion | EngineError, request: Live | None) -> Served:
        """Return a result with its times. `request`: None if the engine never had it; its times are then this step."""
        sent = self.engine.steps if request is None else request.step
        ended = self.engine.steps if request is None or request.ended is None else request.ended
        return Served(seconds(sent), seconds(ended), result)

    def close(self) -> None:
        """Abort all unfinished requests, also after an exception from `between`. A lost engine has no requests."""
        with contextlib.suppress(EngineDied, EngineSilent), self.engine.entered():
            self.engine.close_burst([request for request in self.live.values() if request.ended is None])


def disconnects(stepped: SteppedRequest, step: int) -> bool:
    """Return whether a request's client disconnects at this step."""
    abort = stepped.request.abort
    if abort is None or stepped.ended is not None or stepped.finish_reason is not None:
        return False
    return abort.is_due(stepped.count, (step - stepped.step) * STEP_MS, stepped.stage)
