"""Divides the time of a run over its trials by weight. A trial that lacks evidence may take more than its share.

A budget ends the drawing of examples; it never interrupts an example. Calibration and the confirmation of
counterexamples take extra time, but a run as a whole has an end as well (`RunClock`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from coldproof.harness.judgement.trial import Trial

PATIENCE_FACTOR = 10  # maximum shares of a trial while evidence or examples are missing: some cells are far slower
SLOW_PATIENCE = 2  # the same with a slow model, of which few trials have more than they need
LEAST_DRAWN = 10  # drawn even after its shares, as long as the run has time: one example may take longer than all
GRACE_SECONDS = 10.0  # of a trial with too few examples, however small its share is
PACE_RESERVE = 2  # times what the trials to come need at the pace so far: not for a trial's least examples
PATIENT_EXAMPLES = 40  # maximum examples of a small profile's trial while evidence is missing
# Fraction of the initial share that each trial always gets, even if long examples of earlier trials used up the time.
# The run may then end a little late, but every trial has drawn examples.
RESERVED = 0.6
# A run with a budget of the user's ends within twice the budget, but a short one has at least this time besides.
LEAST_EXTRA = 60.0
# The same for a run without one: its profile's budget is an estimate for a small model on an idle machine.
PATIENT_RUN = 5
# After the end of the run, for the requests of the example in flight. Then requests to an attached server are cut off:
# it may be wrong or hostile, and a request that is cut off is no finding.
CUT_SECONDS = 20.0
OUT_OF_TIME = "the time of the run was over before its turn: it needs a longer --budget"


class RunClock:
    """The time of a run as a whole, apart from the starts of its engines. `starts`: the seconds of these so far."""

    def __init__(
        self,
        seconds: float,
        *,
        strict: bool,
        starts: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin now. `seconds`: the budget. `strict`: the user chose it."""
        self.limit = max(2 * seconds, seconds + LEAST_EXTRA) if strict else PATIENT_RUN * seconds
        self._starts, self._clock = starts, clock
        self._began = clock()

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.until_cut() - CUT_SECONDS)

    def until_cut(self) -> float:
        """Return the seconds until requests that are still in flight are cut off; 0 or less after that."""
        return self.limit + CUT_SECONDS + self._starts() - (self._clock() - self._began)


class OutOfTime(Exception):
    """A cell was not opened because the time of the run was over."""


class TrialEnded(BaseException):
    """Ends a trial whose time is used up, or that cannot run more examples.

    Not an Exception, which hypothesis would take for a counterexample.
    """


class Budget:
    """The seconds left for drawing examples, and the total weight of the trials that have not begun.

    `slow`: one example may take longer than a share. Then each trial gets its part of the time until the run has to
    end, and no trial takes more than twice that, so that all have a turn; but a trial with too few examples also gets
    what the others leave over.
    """

    def __init__(self, seconds: float, weight: float, time_left: Callable[[], float] = lambda: math.inf) -> None:
        """Divide `seconds`. `time_left`: the seconds until the run has to end."""
        self.time_left = time_left
        self.total, self.left, self.weight = seconds, seconds, weight
        self.at_first = seconds / weight if weight else seconds  # seconds for a weight of 1
        self.share = self.longest = self.patience = 0.0
        self.spent = self.begun = 0.0  # seconds used, and the weight of the trials that used them
        self.slow = False

    def drop(self, weight: float) -> None:
        """Remove trials with this total weight: they will not run."""
        self.weight = max(0.0, self.weight - weight)
        self.at_first = max(self.at_first, self.left / self.weight) if self.weight else self.at_first

    def begin(self, weight: float) -> float:
        """Begin a trial and return its share in seconds. Time that earlier trials did not use is divided again."""
        of_rest = weight / max(weight, self.weight)
        fair = max(0.0, self.left) * of_rest
        self.share = max(fair, RESERVED * self.at_first * weight)
        self.weight = max(0.0, self.weight - weight)
        unneeded = self.unneeded()
        self.begun += weight
        if self.slow:  # an equal part of the time that the run has left, which is all that there is
            self.share = self.time_left() * of_rest
            self.longest, self.patience = SLOW_PATIENCE * self.share, unneeded
            return self.share
        spare = self.left - RESERVED * self.at_first * self.weight
        self.longest = max(self.share, min(PATIENCE_FACTOR * self.share, spare))
        self.patience = max(self.longest, GRACE_SECONDS, self.time_left() * of_rest, unneeded)
        return self.share

    def resume(self, share: float) -> None:
        """Go on with a trial that has drawn its examples: it gets the rest of its share, and no more."""
        self.share = self.longest = share
        self.patience = 0.0

    def unneeded(self) -> float:
        """Return the seconds until the run has to end that the trials to come will hardly need; 0 if unknown.

        They serve a trial's least examples: on a busy machine a run takes longer rather than end without a verdict.
        """
        if not self.begun:
            return 0.0
        return max(0.0, self.time_left() - PACE_RESERVE * self.weight * self.spent / self.begun)

    def settle(self, seconds: float) -> None:
        """Subtract the seconds in which a trial has drawn its examples."""
        self.left -= seconds
        self.spent += seconds

    def expected(self) -> float:
        """Return the seconds that the trials to come are expected to use: at the pace so far, or what is left."""
        pace = self.spent / self.begun if self.begun else self.at_first
        return self.time_left() if self.slow else max(0.0, min(self.left, pace * self.weight, self.time_left()))

    def is_spent(self, trial: Trial) -> bool:
        """Return whether a trial should end: after its share if it has its evidence and least examples, else later."""
        used = trial.drawing()
        if not self.time_left():
            return True
        if trial.has_failed:  # its verdict no longer depends on its evidence, so that it gets its share and no more
            return used > self.share or trial.drawn_examples >= trial.enough
        missing = trial.missing()
        few = trial.drawn_examples < trial.least_examples and trial.drawn_requests < trial.least_requests
        if self.slow:
            enough = not missing and trial.drawn_examples >= trial.enough
            most = max(self.longest if missing else self.share, self.patience if few else 0.0)
            return trial.examples > 0 and (enough or used > most)
        short = few or (bool(missing) and trial.examples < LEAST_DRAWN)
        if not trial.examples or (short and used <= self.patience):
            return False
        if missing:
            return used > self.longest
        return trial.drawn_examples >= trial.enough or used > self.share
