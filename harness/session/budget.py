"""Divides the time of a run over its trials by weight. A trial that lacks evidence may take more than its share.

A budget ends the drawing of examples. It never interrupts an example, and it does not include the confirmation of
counterexamples.
"""

from __future__ import annotations

import time

from coldproof.harness.judgement.trial import Trial

PATIENCE_FACTOR = 10  # maximum shares of a trial while evidence or examples are missing: some cells are far slower
LEAST_DRAWN = 10  # drawn even after that time: on a busy machine one example may take longer than all shares
GRACE_SECONDS = 10.0  # of a trial with too few examples, however small its share is
PATIENT_EXAMPLES = 40  # maximum examples of a small profile's trial while evidence is missing
# Fraction of the initial share that each trial always gets, even if long examples of earlier trials used up the time.
# The run may then end a little late, but every trial has drawn examples.
RESERVED = 0.6


class TrialEnded(BaseException):
    """Ends a trial whose time is used up, or that cannot run more examples.

    Not an Exception, which hypothesis would take for a counterexample.
    """


class Budget:
    """The seconds left for drawing examples, and the total weight of the trials that have not begun."""

    def __init__(self, seconds: float, weight: float) -> None:
        self.total, self.left, self.weight = seconds, seconds, weight
        self.at_first = seconds / weight if weight else seconds  # seconds for a weight of 1
        self.share = self.longest = 0.0
        self.spent = self.begun = 0.0  # seconds used, and the weight of the trials that used them

    def drop(self, weight: float) -> None:
        """Remove trials with this total weight: they will not run."""
        self.weight = max(0.0, self.weight - weight)
        self.at_first = max(self.at_first, self.left / self.weight) if self.weight else self.at_first

    def begin(self, weight: float) -> float:
        """Begin a trial and return its share in seconds. Time that earlier trials did not use is divided again."""
        fair = max(0.0, self.left) * weight / max(weight, self.weight)
        self.share = max(fair, RESERVED * self.at_first * weight)
        self.weight = max(0.0, self.weight - weight)
        self.begun += weight
        spare = self.left - RESERVED * self.at_first * self.weight
        self.longest = max(self.share, min(PATIENCE_FACTOR * self.share, spare))
        return self.share

    def settle(self, seconds: float) -> None:
        """Subtract the seconds in which a trial has drawn its examples."""
        self.left -= seconds
        self.spent += seconds

    def expected(self) -> float:
        """Return the seconds that the trials to come are expected to use: at the pace so far, or what is left."""
        pace = self.spent / self.begun if self.begun else self.at_first
        return max(0.0, min(self.left, pace * self.weight))

    def is_spent(self, trial: Trial) -> bool:
        """Return whether a trial should end: after its share if it has its evidence and least examples, else later."""
        used = time.monotonic() - trial.started
        if trial.examples and used - self.left > self.total:
            return True  # a run ends within twice its budget
        missing = trial.missing()
        enough_drawn = trial.examples >= trial.least_examples or trial.requests >= trial.least_requests
        if trial.examples < (LEAST_DRAWN if missing else 0 if enough_drawn else min(LEAST_DRAWN, trial.least_examples)):
            return False
        if missing:
            return used > self.longest
        if trial.examples >= trial.enough:
            return True
        if not enough_drawn:
            return used > max(self.longest, GRACE_SECONDS)
        return trial.examples > 0 and used > self.share
