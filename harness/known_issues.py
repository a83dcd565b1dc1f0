"""The known-issues file: violations waived by name, for an engine version, with a link, a reason and an expiry.

A waiver must match the failure's signature, not just the requirement, so that a new fault under the same requirement
is not waived with the old one.
"""

from __future__ import annotations

import datetime
import fnmatch
import tomllib
from pathlib import Path
from typing import Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from harness.options import UsageError
from reports.schema import Case, Waiver


class KnownIssue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One waiver. `cell` and `signature` are shell patterns; `versions` is a PEP 440 specifier; `worker`: a fault of a
    model's arithmetic cannot show without one.
    """

    requirement: str
    signature: str
    versions: str
    reason: str
    link: str
    cell: str = "*"
    worker: Literal["model", "fingerprint"] | None = None
    expires: datetime.date | None = None


class Waivers:
    """The waivers of a file, for one engine version on one day. What was used follows from the cases."""

    def __init__(
        self, issues: list[KnownIssue], *, version: str | None, today: datetime.date, worker: str = "model"
    ) -> None:
        self.issues, self.version, self.today, self.worker = issues, version, today, worker

    def waive(self, case: Case) -> KnownIssue | None:
        """The first waiver in force that fits a case."""
        return next((issue for issue in self.issues if self.in_force(issue) and fits(issue, case)), None)

    def applies(self, issue: KnownIssue) -> bool:
        """Whether this engine version is meant. Release candidates count (`0.33.0rc1` is what gets qualified)."""
        if self.version is None or issue.worker not in (None, self.worker):
            return False
        try:
            return SpecifierSet(issue.versions).contains(self.version, prereleases=True)
        except InvalidVersion:
            return False

    def in_force(self, issue: KnownIssue) -> bool:
        """Whether it may waive anything here and today."""
        return self.applies(issue) and (issue.expires is None or self.today <= issue.expires)

    def report(self, cases: list[Case], ran: set[str]) -> list[Waiver]:
        """Every waiver with what became of it; `ran` holds the requirements that this run concluded."""
        return [self.entry(issue, [c.id for c in cases if self.waive(c) is issue], ran) for issue in self.issues]

    def entry(self, issue: KnownIssue, used_by: list[str], ran: set[str]) -> Waiver:
        """One waiver's row."""
        if used_by:
            state = "used"
        elif not self.applies(issue):
            state = "not applicable"
        elif not self.in_force(issue):
            state = "expired"
        else:
            state = "stale" if issue.requirement in ran else "not exercised"
        return Waiver(
            requirement=issue.requirement,
            cell=issue.cell,
            signature=issue.signature,
            versions=issue.versions,
            reason=issue.reason,
            link=issue.link,
            expires=issue.expires.isoformat() if issue.expires else None,
            state=state,
            cases=used_by,
        )


def fits(issue: KnownIssue, case: Case) -> bool:
    """Whether a waiver means this case."""
    return (
        issue.requirement == case.requirement
        and fnmatch.fnmatchcase(case.cell, issue.cell)
        and fnmatch.fnmatchcase(case.signature, issue.signature)
    )


def read_known_issues(path: Path | None) -> list[KnownIssue]:
    """The file's waivers; none without a file. Raises UsageError with the place of the fault."""
    if path is None:
        return []
    try:
        raw = tomllib.loads(path.read_text())
        unknown = sorted(set(raw) - {"issue"})
        if unknown:
            raise UsageError(f"cannot use --known-issues {path}: it has {unknown[0]!r}; waivers are written [[issue]]")
        issues = msgspec.convert(raw.get("issue", []), list[KnownIssue])
        for issue in issues:
            SpecifierSet(issue.versions)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, InvalidSpecifier) as problem:
        raise UsageError(f"cannot use --known-issues {path}: {problem}") from problem
    return issues
