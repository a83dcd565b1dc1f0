"""Puts off the proof of a counterexample until the other tests of its cell have drawn their examples.

A proof takes longer than a trial's share of the time. Done at once, the proofs of one area would leave no time for the
plainest property of the next. Failures that keep others from being tested are proved at once: an engine that dies of
one kind of request gets no more of these, and what fails without a cache forbids mixtures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec
import pytest

from coldproof.harness.judgement.trial import Trial
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.selection.select import cell_name, requirement_of

AT_ONCE = (FailureClass.CRASH, FailureClass.HANG)
UNCONFIRMED = "a counterexample was found, and the run ended before it was confirmed"


class Waiting(msgspec.Struct, frozen=True):
    """A trial whose counterexample waits for its proof, with the test that drew it, and since when."""

    trial: Trial
    test: Callable[..., None]
    since: float

    @property
    def gravity(self) -> int:
        """Return the place of the failure's class among all classes: the smaller, the graver."""
        best = self.trial.search.best
        return len(FailureClass) if best is None else list(FailureClass).index(best.judgement.worst().failure_class)


class LaterProofs:
    """The trials of a run whose counterexamples wait, by the ids of their tests.

    `is_open`: whether the test that runs now is followed by another one of its cell, so that its proof may wait.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.is_open = False

    def may_wait(self, trial: Trial) -> bool:
        """Return whether a proof of this trial may be put off, once it has a counterexample that allows it."""
        return self.is_open and not trial.obstacle and not trial.requirement.without_cache

    def put(self, nodeid: str, trial: Trial, test: Callable[..., None]) -> None:
        """Let a trial wait."""
        self.waiting[nodeid] = Waiting(trial, test, time.monotonic())

    def take(self, nodeid: str) -> Waiting | None:
        """Return the trial that waits under this id, and its clock as if no time had passed; None without one."""
        waiting = self.waiting.pop(nodeid, None)
        if waiting is None:
            return None
        away, trial = time.monotonic() - waiting.since, waiting.trial
        trial.started += away
        if trial.search.since is not None:
            trial.search.since += away
        trial.waits = trial.may_wait = False
        return waiting

    def place(self, nodeid: str, items: list[pytest.Item], at: int) -> int:
        """Return where among the tests to come, behind `at`, a waiting one is inserted: behind all that have not run
        in its cell, and before those whose failure is less grave.
        """
        own = self.waiting[nodeid]
        end = at + 1
        while end < len(items) and in_one_cell(items[at], items[end]):
            other = self.waiting.get(items[end].nodeid)
            if other is not None and other.gravity > own.gravity:
                break
            end += 1
        return end


def waits_for_proof(trial: Trial, failure_classes: Iterable[FailureClass]) -> bool:
    """Return whether the counterexample of a trial with failures of these classes is proved later."""
    return trial.may_wait and not any(one in AT_ONCE for one in failure_classes)


def in_one_cell(one: pytest.Item, other: pytest.Item) -> bool:
    """Return whether two tests of requirements run on the same engines."""
    both = requirement_of(one) is not None and requirement_of(other) is not None
    return both and cell_name(one) == cell_name(other)
