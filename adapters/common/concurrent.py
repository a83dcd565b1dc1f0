"""Serve concurrent requests with blocking calls: each request gets its own thread and connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from coldproof.adapters.protocol.engine import EngineError, Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest

POLL_SECONDS = 0.05  # the longest time between two calls of `between` while no token arrives
Send = Callable[[CompletionRequest, Callable[[int], None]], Completion]


def serve_in_threads(
    arrivals: Sequence[Arrival],
    send: Send,
    clock: Callable[[], float],
    on_token: Callable[[int, int], None],
    between: Callable[[], None],
) -> list[Served]:
    """Send each request at its offset and return the results in order. The caller's thread calls `between` meanwhile.

    See `Engine.serve`.
    """
    start, wake = clock(), threading.Event()

    def run(number: int, arrival: Arrival) -> Served:
        time.sleep(max(0.0, arrival.offset_ms / 1000 - (clock() - start)))
        sent = clock()

        def on_count(count: int) -> None:
            on_token(number, count)
            wake.set()

        try:
            result: Completion | EngineError = send(arrival.request, on_count)
        except EngineError as problem:
            result = problem
        finally:
            wake.set()
        return Served(sent, clock(), result)

    pool = ThreadPoolExecutor(len(arrivals))
    try:
        futures = [pool.submit(run, i, arrival) for i, arrival in enumerate(arrivals)]
        polled = False  # call `between` at least once, also when all requests finish before the first poll
        while not (polled and all(future.done() for future in futures)):
            wake.wait(POLL_SECONDS)
            wake.clear()
            between()
            polled = True
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False)  # after Ctrl-C do not wait: the end of the run stops the engine and its threads
