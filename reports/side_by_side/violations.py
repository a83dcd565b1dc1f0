"""The violations of all runs, by their cause. No counterexample is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coldproof.harness.schema.case import Case
from coldproof.reports.side_by_side.columns import Column, Explanation


@dataclass(frozen=True, slots=True)
class Violation:
    """A counterexample of one run."""

    column: Column
    case: Case


@dataclass(frozen=True, slots=True)
class Cause:
    """Violations with one cause. Without a known one, those of one requirement that fail in the same way."""

    known: bool
    reason: str
    link: str
    violations: list[Violation]

    @property
    def runs(self) -> list[str]:
        """Return the labels of the runs, in the order of the page."""
        return list(dict.fromkeys(one.column.label for one in self.violations))

    @property
    def requirements(self) -> list[str]:
        """Return the requirements, sorted."""
        return sorted({one.case.requirement for one in self.violations})


def causes(columns: Sequence[Column]) -> list[Cause]:
    """Return every counterexample of the runs under its cause, the unknown causes first. An invalid run has none."""
    groups: dict[tuple[bool, str, str], list[Violation]] = {}
    for column in columns:
        for case in sorted(() if column.invalid else column.results.cases, key=_place):
            known = explanation(column, case)
            key = (True, known.cause, known.link) if known else (False, f"{case.requirement}: {case.signature}", "")
            groups.setdefault(key, []).append(Violation(column, case))
    return sorted((Cause(*key, found) for key, found in groups.items()), key=lambda one: one.known)


def _place(case: Case) -> tuple[str, str, str]:
    """Return a sort key, because the order of a run's cases means nothing."""
    return case.requirement, case.signature, case.id


def explanation(column: Column, case: Case) -> Explanation | None:
    """Return the known cause of a case: what the command knows of it, or to what the run attributed it, or the known
    issue that waived it.
    """
    if case.id in column.source.explained:
        return column.source.explained[case.id]
    if case.attribution is not None and case.attribution.is_known:
        return Explanation(case.attribution.finding, case.attribution.link)
    return Explanation(case.known_issue) if case.known_issue is not None else None
