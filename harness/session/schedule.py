"""The order in which a run visits its cells: a few examples of every test in every cell before many of any.

1. Each cell is visited once. Each test draws until it has its floor: its evidence and its part of the examples with
   which its requirement conforms. A counterexample is put aside as it is found.
2. The counterexamples are proved, the gravest first: a proof takes longer than a test's share of the time.
3. What is left of the budget goes to further examples of the tests that have their floor.

A visit costs the start of the cell's engines. A cell whose engines take long to start is visited once: its tests draw
all of their examples, and its proofs follow when they have. A cell in which a second visit would draw for a moment only
has no third stage. Failures that keep others from being tested are proved at once: an engine that dies of one kind of
request gets no more of these, and what fails without a cache forbids mixtures, unless the calibration has done that.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import pytest

from coldproof.harness.judgement.trial import Search, Trial
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.selection.select import cell_name, requirement_of

AT_ONCE = (FailureClass.CRASH, FailureClass.HANG)
LONG_START, PART_OF_BUDGET = 5.0, 0.05  # seconds, or this part of the budget: servers that take longer start once
IN_PROCESS_START = 1.0  # seconds at most of an engine in process once it is imported, with which the first start begins
WORTH = 10  # times as long as its engines take to start, a cell's second visit has to draw


class Stage(enum.IntEnum):
    """What a test waits for."""

    PROOF = 1
    REPLAY = 2  # a known finding fails: its cause is looked for
    MORE = 3


class Conclusion(NamedTuple):
    """What is known of a trial: its verdict if it ended now."""

    verdict: Verdict
    reason: str
    case: Case | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that waits, with its test function, since when, and what to conclude if it ends now.

    The engines of its cell may be others when it goes on, so that nothing here may belong to them.
    """

    trial: Trial
    test: Callable[..., None]
    stage: Stage
    conclude: Callable[[], Conclusion]
    since: float
    search: Search  # that has found its counterexample, if it has one

    @property
    def gravity(self) -> int:
        """Return the place of the failure's class among all classes: the smaller, the graver."""
        best = self.trial.search.best
        return len(FailureClass) if best is None else list(FailureClass).index(best.judgement.worst().failure_class)


class Schedule:
    """The tests of a run that wait, by their ids. `seconds`: the budget. `quick`: the engines are in process.

    `in_rounds`: whether tests may wait at all. They do not where a run ends at its first failure, or shares its tests
    with other processes.
    """

    def __init__(self, seconds: float, *, quick: bool) -> None:
        self.seconds, self.quick = seconds, quick
        self.in_rounds = False
        self.waiting: dict[str, Waiting] = {}
        self.taken: Waiting | None = None  # the latest one that went on
        self.placed: set[str] = set()  # ids of tests that were put among the tests to come once more
        self.calibrations = 0.0  # seconds of all cells
        self.starts: dict[str, float] = {}  # of each cell that was visited, how long its engines took to start

    def opened(self, cell: str, seconds: float, *, calibration: float = 0.0) -> None:
        """Record how long the engines of a cell took to start at its first visit, and its calibration."""
        first = self.quick and not self.starts
        self.calibrations += calibration
        self.starts.setdefault(cell, min(seconds, IN_PROCESS_START) if first else seconds)

    def opening(self) -> float:
        """Return how long the engines of a cell take to start, on average; 0 if none was opened."""
        return sum(self.starts.values()) / len(self.starts) if self.starts else 0.0

    def openings_expected(self, cells: int) -> float:
        """Return how long the openings of cells will take: of those to come, of so many, and for second visits."""
        if not self.starts:
            return 0.0
        start, visited = self.opening(), len(self.starts)
        again = len({one.trial.cell for one in self.waiting.values()})
        return max(0, cells - visited) * (start + self.calibrations / visited) + again * start

    def is_visited_once(self, cell: str) -> bool:
        """Return whether the engines of a cell take so long to start that nothing waits for a second visit."""
        return not self.quick and self.starts.get(cell, 0.0) > max(LONG_START, PART_OF_BUDGET * self.seconds)

    def is_worth_a_visit(self, cell: str, drawing: float) -> bool:
        """Return whether a cell is visited again to draw examples for so many seconds."""
        return not self.is_visited_once(cell) and WORTH * self.starts.get(cell, 0.0) <= drawing

    def proof_may_wait(self, trial: Trial) -> bool:
        """Return whether a proof of this trial may be put off, once it has a counterexample that allows it."""
        return self.in_rounds and not trial.obstacle

    def put(
        self,
        nodeid: str,
        trial: Trial,
        test: Callable[..., None],
        stage: Stage,
        conclude: Callable[[], Conclusion],
    ) -> None:
        """Let a trial wait."""
        since = time.monotonic()
        self.waiting[nodeid] = Waiting(
            trial=trial, test=test, stage=stage, conclude=conclude, since=since, search=trial.search
        )

    def take(self, nodeid: str) -> Waiting | None:
        """Return the trial that waits under this id, and its clock as if no time had passed; None without one."""
        waiting = self.waiting.pop(nodeid, None)
        if waiting is None:
            return None
        away, trial = time.monotonic() - waiting.since, waiting.trial
        trial.started += away
        if trial.search.since is not None:
            trial.search.since += away
        trial.waits = trial.may_wait = trial.returns = False
        self.taken = waiting
        return waiting

    def proofs(self, cell: str | None = None) -> int:
        """Return how many trials of a cell, or of all, wait for a proof."""
        return sum(one.stage is not Stage.MORE and cell in (None, one.trial.cell) for one in self.waiting.values())

    def has_more(self, cell: str) -> bool:
        """Return whether a trial of a cell waits to draw more examples."""
        return any(one.stage is Stage.MORE and one.trial.cell == cell for one in self.waiting.values())

    def next_after(self, item: pytest.Item, items: list[pytest.Item]) -> pytest.Item | None:
        """Return the test that follows the one that has just run. If that waits, it is among the tests to come again.

        `items`: all tests of the session in their order, in which those to come are arranged.
        """
        at = len(items) - 1 - items[::-1].index(item)
        if item.nodeid in self.waiting and item.nodeid not in self.placed:
            self.placed.add(item.nodeid)
            items[at + 1 :] = self.arranged(cell_name(item), [*items[at + 1 :], item])
        return items[at + 1] if at + 1 < len(items) else None

    def arranged(self, cell: str, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the tests to come in their order. `cell`: the one whose engines run now."""
        waiting = {one.nodeid: self.waiting[one.nodeid] for one in items if one.nodeid in self.waiting}
        gravest: dict[str, int] = {}
        for one in waiting.values():
            gravest[one.trial.cell] = min(one.gravity, gravest.get(one.trial.cell, one.gravity))
        order = list(self.starts)

        def place(item: pytest.Item) -> tuple[int, ...]:
            one = waiting.get(item.nodeid)
            if one is None:
                return (0,) if requirement_of(item) is not None and cell_name(item) == cell else (2,)
            name = one.trial.cell
            if one.stage is Stage.MORE:
                return 4, order.index(name) if name in order else 0
            if name == cell and self.is_visited_once(cell):
                return 1, one.gravity
            return 3, gravest[name], order.index(name) if name in order else 0, one.gravity

        return sorted(items, key=place)


def waits_for_proof(trial: Trial, failure_classes: Iterable[FailureClass]) -> bool:
    """Return whether the counterexample of a trial with failures of these classes is proved later."""
    return trial.may_wait and not any(one in AT_ONCE for one in failure_classes)
