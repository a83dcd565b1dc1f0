"""The known-issues file: violations waived by name, for an engine version, with a link, a reason and an expiry.

A waiver must match the failure's signature or its fingerprint, not just the requirement, so that a new fault under the
same requirement is not waived with the old one; and it must lead somewhere: one without a link or a reason is refused.
"""

from __future__ import annotations

import datetime
import fnmatch
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from harness.options import UsageError
from reports.causes import fingerprint
from reports.schema import Case, RequirementResult, Verdict, Waiver, worst

FINGERPRINT = r"^[0-9a-f]{8}\Z"  # `$` would let a line feed follow


class KnownIssue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One waiver. `cell` and `signature` are shell patterns, `fingerprint` is a cause's: with both, both must fit;
    `versions` is a PEP 440 specifier; `worker`: a fault of a model's arithmetic cannot show without one.
    """

    requirement: str
    versions: str
    reason: str
    link: str
    signature: str | None = None
    fingerprint: Annotated[str, msgspec.Meta(pattern=FINGERPRINT)] | None = None
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

    def may_waive(self, requirement: str, cell: str) -> bool:
        """Whether some waiver in force is for this requirement in this cell, whatever fails there."""
        return any(
            issue.requirement == requirement and fnmatch.fnmatchcase(cell, issue.cell) and self.in_force(issue)
            for issue in self.issues
        )

    def report(self, cases: list[Case], requirements: list[RequirementResult]) -> list[Waiver]:
        """Every waiver with what became of it in a run with these cases and verdicts."""
        return [
            self.entry(issue, [case.id for case in cases if self.waive(case) is issue], requirements)
            for issue in self.issues
        ]

    def entry(self, issue: KnownIssue, used_by: list[str], requirements: list[RequirementResult]) -> Waiver:
        """One waiver's row."""
        if used_by:
            state = "used"
        elif not self.applies(issue):
            state = "not applicable"
        elif not self.in_force(issue):
            state = "expired"
        else:
            state = "stale" if passes(issue, requirements) else "not exercised"
        return Waiver(
            requirement=issue.requirement,
            cell=issue.cell,
            signature="*" if issue.signature is None else issue.signature,
            fingerprint=issue.fingerprint,
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
        and (issue.signature is None or fnmatch.fnmatchcase(case.signature, issue.signature))
        and issue.fingerprint in (None, fingerprint(case.signature))
    )


def passes(issue: KnownIssue, requirements: list[RequirementResult]) -> bool:
    """Whether what a waiver is for conforms here, in every cell that it means and that ran.

    Where a requirement fails in another way the search ended with that: nothing is known about this failure.
    """
    cells = [cell for one in requirements if one.id == issue.requirement for cell in one.cells]
    meant = [cell.verdict for cell in cells if fnmatch.fnmatchcase(cell.cell, issue.cell)]
    return worst(meant) is Verdict.CONFORMS


def lacks(issue: KnownIssue) -> str:
    """What an entry must have and does not, in words; empty where it is whole."""
    if issue.signature is None and issue.fingerprint is None:
        return "names no failure: give it a signature, a fingerprint or both"
    if not issue.link.strip():
        return "has an empty link: name the upstream report, or say that none is known"
    return "" if issue.reason.strip() else "has an empty reason: say why this may be waived"


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
        for number, issue in enumerate(issues, start=1):
            SpecifierSet(issue.versions)
            if lacks(issue):
                place = f"entry {number}, for {issue.requirement!r},"
                raise UsageError(f"cannot use --known-issues {path}: {place} {lacks(issue)}")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, InvalidSpecifier) as problem:
        raise UsageError(f"cannot use --known-issues {path}: {problem}") from problem
    return issues
