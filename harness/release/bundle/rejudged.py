"""Re-evaluates the stored examples of a run with the current checkers, without its engine.

Recorded findings, counts and evidence are not trusted: they must be the same as the recomputed ones.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import Judgement, judge_again
from coldproof.harness.judgement.oracle import Answer, Question
from coldproof.harness.release.requirements.frozen import FrozenTest, Place


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One stored example: the history, the cold answers, the comparison rule, and the recorded results."""

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
        """The place that the example was drawn for."""
        return Place(self.requirement, self.test, self.cell)


class RejudgedTest:
    """The re-evaluated results of all examples of one place.

    `changed` counts the examples whose recorded results differ from the recomputed ones.
    """

    def __init__(self) -> None:
        self.examples = self.requests = self.noise = self.permitted = self.failing = self.changed = 0
        self.evidence: Counter[str] = Counter()
        self.rules: set[Rule] = set()
        self.first_difference = ""

    def add(self, stored: Stored, recomputed: Judgement) -> None:
        """Add an example and its recomputed judgement."""
        self.examples += 1
        self.requests += len(recomputed.history.outcomes)
        self.noise += sum(not found.explained for found in recomputed.noise)
        self.permitted += len(recomputed.permitted)
        self.failing += bool(recomputed.findings)
        self.evidence.update({str(name): value for name, value in recomputed.evidence.items()})
        self.rules.add(stored.rule)
        if text := difference(stored, recomputed):
            self.changed += 1
            self.first_difference = self.first_difference or text


def rejudge(stored: Stored, test: FrozenTest) -> Judgement:
    """Judge an example with the current checkers, and return the findings that its test is about."""
    judgement = judge_again(stored.history, dict(stored.answers), stored.rule, exclusive=stored.exclusive)
    wanted = test.declared
    return judgement.limited(overlapped_too=wanted.overlapped_too, hashes_too=wanted.hashes_too)


def difference(stored: Stored, recomputed: Judgement) -> str:
    """Return the first difference between recorded and recomputed results; "" if there is none."""
    if recomputed.findings != stored.findings:
        return f"recorded {findings_summary(stored.findings)}, recomputed {findings_summary(recomputed.findings)}"
    if recomputed.noise != stored.noise:
        return f"recorded {len(stored.noise)} differences as noise, recomputed {len(recomputed.noise)}"
    if recomputed.permitted != stored.permitted:
        return f"recorded {len(stored.permitted)} differences as permitted, recomputed {len(recomputed.permitted)}"
    now = {str(name): float(value) for name, value in recomputed.evidence.items()}
    for name in sorted(now.keys() | stored.evidence.keys()):
        if now.get(name) != stored.evidence.get(name):
            return f"recorded '{name}' as {stored.evidence.get(name)}, recomputed {now.get(name)}"
    return ""


def findings_summary(findings: tuple[Finding, ...]) -> str:
    """Return the number of findings and the first one, or "no finding"."""
    return f"{len(findings)} findings ({findings[0].sentence[:160]})" if findings else "no finding"
