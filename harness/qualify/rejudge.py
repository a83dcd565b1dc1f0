"""Judges the stored examples of a run again, without its engine: what was sent and answered is looked at once more.

A recorded finding, count or piece of evidence is never believed; it has to come out again.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from harness.checkers.finding import Finding, Rule
from harness.history import History
from harness.judge import Judgement, judge_again
from harness.oracle.base import Answer, Question
from harness.qualify.frozen import FrozenTest, Place


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the events: an example with all that it was judged by and what was said of it."""

    requirement: str
    cell: str
    test: str
    rule: Rule
    exclusive: bool
    history: History
    answers: tuple[tuple[Question, Answer], ...]
    evidence: dict[str, float]
    findings: tuple[Finding, ...]
    noise: tuple[Finding, ...]
    permitted: tuple[Finding, ...] = ()

    @property
    def place(self) -> Place:
        """Where it was drawn."""
        return Place(self.requirement, self.test, self.cell)


class Seen:
    """What the examples of one place came to when they were judged again."""

    def __init__(self) -> None:
        self.examples = self.requests = self.noise = self.permitted = self.failing = self.otherwise = 0
        self.evidence: Counter[str] = Counter()
        self.rules: set[Rule] = set()
        self.first_difference = ""

    def add(self, stored: Stored, again: Judgement) -> None:
        """One more."""
        self.examples += 1
        self.requests += len(again.history.outcomes)
        self.noise += sum(not found.explained for found in again.noise)
        self.permitted += len(again.permitted)
        self.failing += bool(again.findings)
        self.evidence.update({str(name): value for name, value in again.evidence.items()})
        self.rules.add(stored.rule)
        if said := otherwise(stored, again):
            self.otherwise += 1
            self.first_difference = self.first_difference or said


def judged_again(stored: Stored, test: FrozenTest) -> Judgement:
    """What today's checkers say of an example, as far as it is this test's matter."""
    judgement = judge_again(stored.history, dict(stored.answers), stored.rule, exclusive=stored.exclusive)
    wanted = test.declared
    return judgement.limited(overlapped_too=wanted.overlapped_too, hashes_too=wanted.hashes_too)


def otherwise(stored: Stored, again: Judgement) -> str:
    """What was recorded otherwise than it comes out now; empty where nothing was."""
    if again.findings != stored.findings:
        return f"recorded {said_of(stored.findings)}, found again {said_of(again.findings)}"
    if again.noise != stored.noise:
        return f"recorded {len(stored.noise)} differences as noise, found again {len(again.noise)}"
    if again.permitted != stored.permitted:
        return f"recorded {len(stored.permitted)} differences as a lossy mode's, found again {len(again.permitted)}"
    now = {str(name): float(value) for name, value in again.evidence.items()}
    for name in sorted(now.keys() | stored.evidence.keys()):
        if now.get(name) != stored.evidence.get(name):
            return f"recorded '{name}' as {stored.evidence.get(name)}, counted again {now.get(name)}"
    return ""


def said_of(findings: tuple[Finding, ...]) -> str:
    """In a few words."""
    return f"{len(findings)} findings ({findings[0].sentence[:160]})" if findings else "no finding"
