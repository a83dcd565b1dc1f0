"""How long an engine may take for a request, by the time that the run has left.

A slow engine is not a wrong one. So a request that is cut off is no answer and no error of the engine: RequestOverdue
is no EngineError, and no checker ever gets it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

REQUEST_SECONDS = 1800.0  # for one request where no run sets a limit: ten times the longest silence


class RequestOverdue(Exception):
    """The time for a request was over before its answer ended. The message says what the engine did meanwhile."""


class Deadline:
    """The end of the time for one request. `seconds`: how much it had."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = max(0.0, seconds)
        self._clock = clock
        self._ends = clock() + self.seconds

    def left(self) -> float:
        """Return the seconds that are left; 0 or less if there are none."""
        return self._ends - self._clock()


class RequestTime:
    """The time that each request of a run gets: `seconds`, but never more than `run_left` returns."""

    def __init__(
        self,
        seconds: float = REQUEST_SECONDS,
        *,
        run_left: Callable[[], float] = lambda: math.inf,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.seconds, self.run_left, self.clock, self.sleep = seconds, run_left, clock, sleep

    def deadline(self) -> Deadline:
        """Return the deadline of a request that begins now."""
        return Deadline(min(self.seconds, self.run_left()), self.clock)
