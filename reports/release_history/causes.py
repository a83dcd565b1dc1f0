"""The violations of several releases, by their cause."""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.reports.schema.releases import ReleaseCase, ReleaseHistory


@dataclass(frozen=True, slots=True)
class Violation:
    """A counterexample of a requirement on one release."""

    requirement: str
    version: str
    case: ReleaseCase


@dataclass(frozen=True, slots=True)
class Cause:
    """Violations with one cause. Without a known one, those of one requirement that fail in the same way."""

    violations: list[Violation]

    @property
    def known(self) -> bool:
        """Return whether the cause is known."""
        return bool(self.violations[0].case.cause)

    @property
    def reason(self) -> str:
        """Return the cause in words; the way in which they fail if it is not known."""
        first = self.violations[0].case
        return first.cause or f"{self.violations[0].requirement}: {first.signature}"

    @property
    def link(self) -> str:
        """Return the public report, or what is said in place of one."""
        return self.violations[0].case.link

    @property
    def versions(self) -> list[str]:
        """Return the releases, in the order of the history."""
        return list(dict.fromkeys(one.version for one in self.violations))

    @property
    def requirements(self) -> list[str]:
        """Return the requirements, sorted."""
        return sorted({one.requirement for one in self.violations})


def causes(history: ReleaseHistory) -> list[Cause]:
    """Return every violation of the history under its cause, the unknown causes first."""
    groups: dict[tuple[str, str, str], list[Violation]] = {}
    for row in history.releases:
        for requirement, verdict in row.verdicts.items():
            for case in verdict.cases:
                key = (case.cause, case.link, "" if case.cause else f"{requirement} {case.signature}")
                groups.setdefault(key, []).append(Violation(requirement, row.version, case))
    return sorted(map(Cause, groups.values()), key=lambda one: one.known)
