"""Reads the known-issues file: waivers of violations, for an engine version, with a link, a reason and an expiry date.

A waiver must match the failure's signature or its fingerprint, not just the requirement, so that a new fault under the
same requirement is not waived too. An entry without a link or a reason is refused.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import RequirementResult, Waiver
from coldproof.harness.schema.stored_files import read_toml
from coldproof.harness.schema.verdict import Verdict, worst
from coldproof.reports.assemble.causes import fingerprint

NOT_FOUND = "not found in this run"
FINGERPRINT = r"^[0-9a-f]{8}\Z"  # `$` would also match before a line feed


class KnownIssue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One waiver. `cell` and `signature` are shell patterns, `fingerprint` is that of a cause; with both, both must
    match. `says`: words of what failed or of the engine's log. A signature tells crashes apart by what was sent, and
    these words by how the engine ended. `versions` is a PEP 440 specifier. `worker`: only runs with this worker; None:
    any. `rate`: how often runs find it, if not every run does; then the verdict must not depend on whether this one
    did. `finding`: the root cause, a folder of `findings/`; `no_finding`: why there is none.
    """

    requirement: str
    versions: str
    reason: str
    link: str
    signature: str | None = None
    fingerprint: Annotated[str, msgspec.Meta(pattern=FINGERPRINT)] | None = None
    says: str | None = None
    cell: str = "*"
    worker: Literal["model", "fingerprint"] | None = None
    expires: datetime.date | None = None
    rate: str | None = None
    finding: str | None = None
    no_finding: str | None = None

    def __str__(self) -> str:
        return f"{self.reason} ({self.link})"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiver matches of a failure that is no case yet. The fields are those of a case."""

    requirement: str
    cell: str
    signature: str
    sentence: str
    log_tail: str


class Waivers:
    """The waivers of a file, for one engine version and one day.

    `repaired`: the findings that repairs remove from the engine. A violation there has another cause, so that their
    waivers do not apply.
    """

    def __init__(
        self,
        issues: list[KnownIssue],
        *,
        version: str | None,
        today: datetime.date,
        worker: str = "model",
        repaired: Collection[str] = (),
    ) -> None:
        self.issues, self.version, self.today, self.worker = issues, version, today, worker
        self.repaired = repaired

    def waive(self, case: Case | Seen) -> KnownIssue | None:
        """Return the first waiver in force that matches a case, or a failure that may become one."""
        return next((issue for issue in self.issues if self.in_force(issue) and matches(issue, case)), None)

    def applies(self, issue: KnownIssue) -> bool:
        """Return whether an entry is for this version, worker and repairs. A candidate counts as its release."""
        if self.version is None or issue.worker not in (None, self.worker) or issue.finding in self.repaired:
            return False
        try:
            return SpecifierSet(issue.versions).contains(self.version, prereleases=True)
        except InvalidVersion:
            return False

    def in_force(self, issue: KnownIssue) -> bool:
        """Return whether an entry applies and has not expired."""
        return self.applies(issue) and (issue.expires is None or self.today <= issue.expires)

    def may_waive(self, requirement: str, cell: str) -> bool:
        """Return whether a waiver in force is for this requirement and cell, for any failure."""
        return any(self.about(requirement, cell))

    def about(self, requirement: str, cell: str) -> Iterator[KnownIssue]:
        """Yield the waivers in force for this requirement and cell."""
        for issue in self.issues:
            if issue.requirement == requirement and fnmatch.fnmatchcase(cell, issue.cell) and self.in_force(issue):
                yield issue

    def with_rare(self, requirement: str, cell: str, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
        """Return the verdict of a trial without a counterexample. It conforms only if no rare issue is known there."""
        rare = next((issue for issue in self.about(requirement, cell) if issue.rate is not None), None)
        if verdict is not Verdict.CONFORMS or rare is None:
            return verdict, reason
        return Verdict.KNOWN_ISSUE, f"{NOT_FOUND}, but {rare.rate}: {rare}; here {reason}"

    def report(self, cases: list[Case], requirements: list[RequirementResult]) -> list[Waiver]:
        """Return every waiver with its state after a run with these cases and verdicts."""
        used = {case.id: self.waive(case) or self.waive_as_shipped(case) for case in cases}
        return [
            self.entry(issue, [name for name, waived in used.items() if waived is issue], requirements)
            for issue in self.issues
        ]

    def waive_as_shipped(self, case: Case) -> KnownIssue | None:
        """Return the waiver of a case that was found on the engine as it is shipped, before that was repaired."""
        if case.known_issue is None or not self.repaired:
            return None
        shipped = Waivers(self.issues, version=self.version, today=self.today, worker=self.worker)
        return shipped.waive(case)

    def entry(self, issue: KnownIssue, used_by: list[str], requirements: list[RequirementResult]) -> Waiver:
        """Return the row of one waiver."""
        if used_by:
            state = "used"
        elif issue.rate is not None and self.in_force(issue):
            state = f"{NOT_FOUND}, but {issue.rate}"
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
            says=issue.says,
            versions=issue.versions,
            reason=issue.reason,
            link=issue.link,
            finding=issue.finding,
            expires=issue.expires.isoformat() if issue.expires else None,
            state=state,
            cases=used_by,
        )


def matches(issue: KnownIssue, case: Case | Seen) -> bool:
    """Return whether a waiver matches a case."""
    return (
        issue.requirement == case.requirement
        and fnmatch.fnmatchcase(case.cell, issue.cell)
        and (issue.signature is None or fnmatch.fnmatchcase(case.signature, issue.signature))
        and issue.fingerprint in (None, fingerprint(case.signature))
        and (issue.says is None or issue.says in case.sentence or issue.says in case.log_tail)
    )


def passes(issue: KnownIssue, requirements: list[RequirementResult]) -> bool:
    """Return whether the requirement conforms in every cell of the waiver that ran.

    If it fails in a different way, False: the search ended there, so nothing is known about the waived failure.
    """
    cells = [cell for one in requirements if one.id == issue.requirement for cell in one.cells]
    meant = [cell.verdict for cell in cells if fnmatch.fnmatchcase(cell.cell, issue.cell)]
    return worst(meant) is Verdict.CONFORMS


def incomplete_entry(issue: KnownIssue) -> str:
    """Return what a known-issues entry lacks, as text; empty if it is complete."""
    if issue.signature is None and issue.fingerprint is None:
        return "has neither a signature nor a fingerprint"
    if not (issue.fingerprint or (issue.says or "").strip() or (issue.signature or "").strip("*? ;")):
        return "has a signature that matches every failure: give the class of the failure, or `says`"
    if not issue.link.strip():
        return "has an empty link: give the upstream report, or state that none is known"
    return "" if issue.reason.strip() else "has an empty reason: state why the violation may be waived"


def read_known_issues(path: Path | None) -> list[KnownIssue]:
    """Return the waivers of the file; none without a file. Raises UsageError that names the faulty entry."""
    if path is None:
        return []
    try:
        raw = read_toml(path)
        unknown = sorted(set(raw) - {"issue"})
        if unknown:
            raise UsageError(
                f"cannot use --known-issues {path}: unknown key {unknown[0]!r}; each entry begins with [[issue]]"
            )
        issues = msgspec.convert(raw.get("issue", []), list[KnownIssue])
        for number, issue in enumerate(issues, start=1):
            SpecifierSet(issue.versions)
            if incomplete_entry(issue):
                place = f"entry {number}, for {issue.requirement!r},"
                raise UsageError(f"cannot use --known-issues {path}: {place} {incomplete_entry(issue)}")
    except (OSError, msgspec.MsgspecError, InvalidSpecifier) as problem:
        raise UsageError(f"cannot use --known-issues {path}: {problem}") from problem
    return issues


def today() -> datetime.date:
    """Return the date in UTC, so that a waiver expires at the same time everywhere."""
    return datetime.datetime.now(datetime.UTC).date()
