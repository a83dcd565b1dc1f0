"""Divides the time of a run over its trials by weight. A trial that lacks evidence may take more than its share.

A budget ends the drawing of examples. It never interrupts an example, and it does not include the confirmation of
counterexamples.
"""

from __future__ import annotations

import math
import time

from coldproof.harness.judgement.trial import Trial

PATIENCE_FACTOR = 3  # maximum shares of a trial while evidence is missing
MIN_COUNT_FACTOR = 10  # the same where a minimum of examples is required: one cell may be 100 times slower than another
MIN_EXAMPLES = 10  # drawn even after that time: on a busy machine one example may take longer than all shares
PATIENT_EXAMPLES = 24  # maximum examples of a small profile's trial while evidence is missing
# Fraction of the initial share that each trial always gets, even if long examples of earlier trials used up the time.
# The run may then end a little late, but every trial has drawn examples.
RESERVED = 0.6


class BudgetSpent(BaseException):
    """Ends a trial whose time is used up. Not an Exception, which hypothesis would take for a counterexample."""


class Budget:
    """The seconds left for drawing examples, and the total weight of the trials that have not begun.

    `examples`, `requests`: a trial with fewer of both may exceed its share, like one that lacks evidence. `enough`:
    number of examples that ends a trial that lacks no evidence.
    """

    def __init__(
        self, seconds: float, weight: float, *, examples: int = 0, requests: int = 0, enough: float = math.inf
    ) -> None:
        self.left, self.weight = seconds, weight
        self.examples, self.requests, self.enough = examples, requests, enough
        self.patience = MIN_COUNT_FACTOR if examples or requests else PATIENCE_FACTOR
        self.at_first = seconds / weight if weight else seconds  # seconds for a weight of 1
        self.share = self.longest = 0.0

    def drop(self, weight: float) -> None:
        """Remove trials with this total weight: they will not run."""
        self.weight = max(0.0, self.weight - weight)
        self.at_first = max(self.at_first, self.left / self.weight) if self.weight else self.at_first

    def begin(self, weight: float) -> float:
        """Begin a trial and return its share in seconds. Time that earlier trials did not use is divided again."""
        fair = max(0.0, self.left) * weight / max(weight, self.weight)
        self.share = max(fair, RESERVED * self.at_first * weight)
        self.weight = max(0.0, self.weight - weight)
        spare = self.left - RESERVED * self.at_first * self.weight
        self.longest = max(self.share, min(self.patience * self.share, spare))
        return self.share

    def settle(self, seconds: float) -> None:
        """Subtract the seconds in which a trial has drawn its examples."""
        self.left -= seconds

    def is_spent(self, trial: Trial) -> bool:
        """Return whether a trial should end: after its share if evidence and examples are complete, else later."""
        used = time.monotonic() - trial.started
        if trial.missing():
            return trial.examples >= MIN_EXAMPLES and used > self.longest
        if trial.examples >= self.enough:
            return True
        enough_drawn = trial.examples >= self.examples or trial.requests >= self.requests
        return trial.examples > 0 and used > (self.share if enough_drawn else self.longest)
