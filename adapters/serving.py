"""Requests side by side over blocking calls, a thread and a connection for each; and one request as a burst of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from adapters.base import Arrival, Completion, CompletionRequest, EngineError, Served

LOOK_SECONDS = 0.05  # how often the caller looks up while no token comes
Ask = Callable[[CompletionRequest, Callable[[int], None]], Completion]


class Serves(Protocol):
    """An engine's `serve`."""

    def __call__(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """See `Engine.serve`."""


def served_alone(serve: Serves, request: CompletionRequest) -> Completion:
    """One request by an engine that serves bursts. Raises what became of it where that is no answer."""
    (served,) = serve([Arrival(request)], lambda _number, _count: None, lambda: None)
    if isinstance(served.result, EngineError):
        raise served.result
    return served.result


def serve_in_threads(
    arrivals: Sequence[Arrival],
    ask: Ask,
    clock: Callable[[], float],
    on_token: Callable[[int, int], None],
    between: Callable[[], None],
) -> list[Served]:
    """Ask each at its offset; the caller's thread looks after them meanwhile. See `Engine.serve`."""
    began, wake = clock(), threading.Event()

    def one(number: int, arrival: Arrival) -> Served:
        time.sleep(max(0.0, arrival.offset_ms / 1000 - (clock() - began)))
        sent = clock()

        def on_count(count: int) -> None:
            on_token(number, count)
            wake.set()

        try:
            result: Completion | EngineError = ask(arrival.request, on_count)
        except EngineError as problem:
            result = problem
        finally:
            wake.set()
        return Served(sent, clock(), result)

    pool = ThreadPoolExecutor(len(arrivals))
    try:
        asked = [pool.submit(one, i, arrival) for i, arrival in enumerate(arrivals)]
        looked = False  # one look at least, also where all is answered before this thread has its turn
        while not (looked and all(future.done() for future in asked)):
            wake.wait(LOOK_SECONDS)
            wake.clear()
            between()
            looked = True
        return [future.result() for future in asked]
    finally:
        pool.shutdown(wait=False)  # after Ctrl-C nobody waits: closing the run ends the engine and the threads
