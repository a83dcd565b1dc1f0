"""The violations of all runs, by their cause. No counterexample is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coldproof.reports.schema.case import Case
from coldproof.reports.side_by_side.columns import Column, Explanation


@dataclass(frozen=True, slots=True)
class Violation:
    """A counterexample of one run. `explained`: its known cause; None if it is not known."""

    column: Column
    case: Case
    explained: Explanation | None


@dataclass(frozen=True, slots=True)
class Cause:
    """Violations with one cause. Without a known one, those of one requirement that fail in the same way."""

    violations: list[Violation]

    @property
    def known(self) -> bool:
        """Return whether the cause is known."""
        return self.violations[0].explained is not None

    @property
    def reason(self) -> str:
        """Return the cause in words; the way in which they fail if it is not known."""
        first = self.violations[0]
        return first.explained.cause if first.explained else f"{first.case.requirement}: {first.case.signature}"

    @property
    def link(self) -> str:
        """Return the public report, or what is said in place of one."""
        explained = self.violations[0].explained
        return explained.link if explained else ""

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
    groups: dict[tuple[object, ...], list[Violation]] = {}
    for column in columns:
        for case in sorted(() if column.invalid else column.results.cases, key=_place):
            explained = explanation(column, case)
            key = (explained,) if explained else (case.requirement, case.signature)
            groups.setdefault(key, []).append(Violation(column, case, explained))
    return sorted(map(Cause, groups.values()), key=lambda one: one.known)


def _place(case: Case) -> tuple[str, str, str]:
    """Return a sort key, because the order of a run's cases means nothing."""
    return case.requirement, case.signature, case.id


def explanation(column: Column, case: Case) -> Explanation | None:
    """Return the known cause of a case: what the command knows of it, else the known issue that waived it."""
    if case.id in column.source.explained:
        return column.source.explained[case.id]
    return Explanation(case.known_issue) if case.known_issue is not None else None
