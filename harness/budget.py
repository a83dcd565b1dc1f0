"""How the time of a run is shared out: by weight over what is left to test, more to what is still unexercised.

A budget ends the drawing of examples, never an example; confirming a counterexample is not charged to it.
"""

from __future__ import annotations

import math
import time

from harness.requirement import Trial

PATIENCE_FACTOR = 3  # shares that a trial may take while evidence is missing
LOOKS_FACTOR = 10  # where so many examples are wanted: one engine's cell may be a hundred times as slow as another's
FEWEST = 10  # examples before that patience ends: on a busy machine one may take longer than all of a trial's shares
MOST_PATIENT = 24  # examples up to which a trial of a small profile goes on while evidence is missing
# Of the share that each trial could count on at first. Patience leaves it to the later ones, and they get it even where
# long examples have eaten it up: a run ends a little late rather than with trials that had nothing.
RESERVED = 0.6


class BudgetSpent(BaseException):
    """A trial has had its time. No Exception: hypothesis would take that for a counterexample."""


class Budget:
    """Seconds for drawing examples, and the weight of all trials that are still to come.

    `examples`, `requests`: a trial with fewer of both goes on beyond its share, like one that lacks evidence. `enough`:
    examples with which a trial ends that lacks none.
    """

    def __init__(
        self, seconds: float, weight: float, *, examples: int = 0, requests: int = 0, enough: float = math.inf
    ) -> None:
        self.left, self.weight = seconds, weight
        self.examples, self.requests, self.enough = examples, requests, enough
        self.patience = LOOKS_FACTOR if examples or requests else PATIENCE_FACTOR
        self.at_first = seconds / weight if weight else seconds  # seconds for a weight of 1
        self.share = self.longest = 0.0

    def forget(self, weight: float) -> None:
        """Trials of this weight are not going to take place."""
        self.weight = max(0.0, self.weight - weight)
        self.at_first = max(self.at_first, self.left / self.weight) if self.weight else self.at_first

    def begin(self, weight: float) -> float:
        """A trial begins: its share in seconds. What earlier ones left over is shared out again."""
        fair = max(0.0, self.left) * weight / max(weight, self.weight)
        self.share = max(fair, RESERVED * self.at_first * weight)
        self.weight = max(0.0, self.weight - weight)
        spare = self.left - RESERVED * self.at_first * self.weight
        self.longest = max(self.share, min(self.patience * self.share, spare))
        return self.share

    def settle(self, seconds: float) -> None:
        """A trial has drawn its examples in so many seconds."""
        self.left -= seconds

    def is_spent(self, trial: Trial) -> bool:
        """Whether a trial should end: at its share once it has shown what it must, as often; later if it has not."""
        used = time.monotonic() - trial.started
        if trial.missing():
            return trial.examples >= FEWEST and used > self.longest
        if trial.examples >= self.enough:
            return True
        looked = trial.examples >= self.examples or trial.requests >= self.requests
        return trial.examples > 0 and used > (self.share if looked else self.longest)
