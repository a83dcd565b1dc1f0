"""Reads the known-issues file: accepted causes and violations, with a reason, a version range and an expiry date.

An accepted finding names a root cause of `findings/`. Whether a violation belongs to it is not this file's business:
the run attributes each case, by the finding's repair where there is one. Only for a violation whose cause no finding
records, an entry matches the failure's signature or its fingerprint, with a link.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion

from coldproof.adapters.registry import ATTACHED, ENGINES
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.finding_records import read_records, waivers_of
from coldproof.harness.case.repairs import read_repairs, repairing
from coldproof.harness.options import UsageError
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, Shows
from coldproof.harness.schema.results import RequirementResult, Waiver
from coldproof.harness.schema.stored_files import read_toml
from coldproof.harness.schema.verdict import Verdict, worst
from coldproof.reports.assemble.causes import fingerprint

NOT_FOUND = "not found in this run"
NO_REPORT = "no public report known"
FINGERPRINT = r"^[0-9a-f]{8}\Z"  # `$` would also match before a line feed
TABLES = {"accepted", "issue"}
MIXED = ("MIXED-1", "MIXED-2")  # everything at once: what any requirement says
PATHS = {"same path", "other path"}
RESET = "reset"  # the kind of a change
TRANSFER = "kv_connector"  # in the configuration of an engine whose KV blocks go to a second tier or another side
WRONG_ANSWERS = {"stale state", "cross-request", "corrupt", "not the cache"}


class AcceptedFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An accepted root cause, as it stands in the file. `versions` is a PEP 440 specifier."""

    finding: str
    versions: str
    reason: str
    expires: datetime.date | None = None


class Accepted(msgspec.Struct, frozen=True):
    """An accepted root cause with its record. What belongs to it is decided by the attribution of a case."""

    entry: AcceptedFinding
    record: FindingRecord

    def __str__(self) -> str:
        return f"{self.reason} ({self.finding})"

    @property
    def finding(self) -> str:
        """Return the id of the finding."""
        return self.entry.finding

    @property
    def versions(self) -> str:
        """Return the specifier of the versions for which it is accepted."""
        return self.entry.versions

    @property
    def reason(self) -> str:
        """Return why it is accepted."""
        return self.entry.reason

    @property
    def expires(self) -> datetime.date | None:
        """Return the last day on which it is accepted."""
        return self.entry.expires

    @property
    def link(self) -> str:
        """Return the public report of the finding, or that there is none."""
        return self.record.link or NO_REPORT

    @property
    def requirement(self) -> str:
        """Return the requirement of the finding's own case."""
        return self.record.requirement

    @property
    def cell(self) -> str:
        """Return the cell of that case."""
        return self.record.found.cell

    @property
    def signature(self) -> str:
        """Return the signature of that case."""
        return self.record.signature

    @property
    def worker(self) -> None:
        """Return no worker: a cause is accepted with any."""
        return None

    def accepts(self, case: Case | Seen) -> bool:
        """Return whether a case belongs to this cause. By signature alone, its record has to have the signature."""
        found = case.attribution
        if found is None or found.findings != [self.finding]:
            return False
        return found.basis is not Basis.SIGNATURE or is_alike(self.record, case)

    def is_about(self, requirement: str, cell: str) -> bool:
        """Return whether its record says that it shows itself in this requirement and cell."""
        return self.record.requirement == requirement or any(self.shown_in(requirement, cell))

    def shown_in(self, requirement: str, cell: str) -> Iterator[Shows]:
        """Yield how it shows itself there, of a finding without a repair."""
        for one in self.record.shows:
            if one.requirement == requirement and fnmatch.fnmatchcase(cell, one.cell):
                yield one

    def rate_in(self, requirement: str, cell: str) -> str | None:
        """Return how often a run finds it there; None if every run does."""
        return next((one.rate for one in self.shown_in(requirement, cell) if one.rate is not None), None)


class KnownIssue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An accepted violation whose cause no finding records. `cell` and `signature` are shell patterns, `fingerprint` is
    that of a cause; with both, both must match. `says`: words of what failed or of the engine's log. A signature tells
    crashes apart by what was sent, and these words by how the engine ended. `versions` is a PEP 440 specifier.
    `worker`: only runs with this worker; None: any. `rate`: how often runs find it, if not every run does; then the
    verdict must not depend on whether this one did. `finding`: the root cause, only for versions that no repair is for;
    `no_finding`: why no finding records it.
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

    def accepts(self, case: Case | Seen) -> bool:
        """Return whether it matches a case."""
        return matches(self, case)

    def is_about(self, requirement: str, cell: str) -> bool:
        """Return whether it is for this requirement and cell."""
        return self.requirement == requirement and fnmatch.fnmatchcase(cell, self.cell)

    def rate_in(self, requirement: str, cell: str) -> str | None:
        """Return how often a run finds it there; None if every run does."""
        return self.rate if self.is_about(requirement, cell) else None


Issue = Accepted | KnownIssue


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a waiver matches of a failure that is no case yet. The fields are those of a case."""

    requirement: str
    cell: str
    signature: str
    sentence: str
    log_tail: str
    attribution: Attribution | None = None  # of a case that failed so, in the same requirement and cell


class Waivers:
    """The waivers of a file, for one engine version and one day.

    `repaired`: the findings that repairs remove from the engine. A violation there has another cause, so that their
    waivers do not apply.
    """

    def __init__(
        self,
        issues: list[Issue],
        *,
        version: str | None,
        today: datetime.date,
        worker: str = "model",
        repaired: Collection[str] = (),
    ) -> None:
        self.issues, self.version, self.today, self.worker = issues, version, today, worker
        self.repaired = repaired

    def waive(self, case: Case | Seen) -> Issue | None:
        """Return the first waiver in force that accepts a case, or a failure that may become one."""
        accepting = (issue for issue in self.issues if self.in_force(issue) and issue.accepts(case))
        return next(accepting, None) or self.waive_all(case)

    def waive_all(self, case: Case | Seen) -> Issue | None:
        """Return the first of several causes that may be those of a case, if all of them are accepted.

        They act in it together, as replays showed, or it has the signature of each, where no repair can tell. Of those
        that act together, a remark needs no acceptance; where no repair can tell, nothing shows that it is the remark.
        """
        found = case.attribution
        if found is None:
            return None
        together = found.with_findings and found.is_by_replay
        if not together and found.basis is not Basis.SIGNATURE:
            return None
        names = found.findings if together else found.candidates
        named = [
            one for one in self.issues if isinstance(one, Accepted) and self.in_force(one) and one.finding in names
        ]
        fitting = [one for one in named if together or is_alike(one.record, case)]
        records = read_records()
        needed = {name for name in names if not together or records[name].is_root_cause}
        return fitting[0] if fitting and needed <= {one.finding for one in fitting} else None

    def explain(self, case: Case) -> Issue | None:
        """Return what a case belongs to or, where no run attributed it, what has its signature. It waives nothing."""
        alike = (one for one in self.issues if isinstance(one, Accepted) and self.in_force(one))
        return self.waive(case) or next((one for one in alike if is_alike(one.record, case)), None)

    def applies(self, issue: Issue) -> bool:
        """Return whether an entry is for this version, worker and repairs. A candidate counts as its release."""
        if self.version is None or issue.worker not in (None, self.worker) or issue.finding in self.repaired:
            return False
        try:
            return SpecifierSet(issue.versions).contains(self.version, prereleases=True)
        except InvalidVersion:
            return False

    def in_force(self, issue: Issue) -> bool:
        """Return whether an entry applies and has not expired."""
        return self.applies(issue) and (issue.expires is None or self.today <= issue.expires)

    def may_waive(self, requirement: str, cell: str) -> bool:
        """Return whether a waiver in force is for this requirement and cell, for any failure."""
        return any(self.about(requirement, cell))

    def about(self, requirement: str, cell: str) -> Iterator[Issue]:
        """Yield the waivers in force for this requirement and cell."""
        for issue in self.issues:
            if issue.is_about(requirement, cell) and self.in_force(issue):
                yield issue

    def with_rare(self, requirement: str, cell: str, verdict: Verdict, reason: str) -> tuple[Verdict, str]:
        """Return the verdict of a trial without a counterexample. It conforms only if no rare issue is known there."""
        rates = ((issue, issue.rate_in(requirement, cell)) for issue in self.about(requirement, cell))
        rare, rate = next(((issue, rate) for issue, rate in rates if rate is not None), (None, None))
        if verdict is not Verdict.CONFORMS or rare is None:
            return verdict, reason
        return Verdict.KNOWN_ISSUE, f"{NOT_FOUND}, but {rate}: {rare}; here {reason}"

    def report(self, cases: list[Case], requirements: list[RequirementResult]) -> list[Waiver]:
        """Return every waiver with its state after a run with these cases and verdicts."""
        used = {case.id: self.waive(case) or self.waive_as_shipped(case) for case in cases}
        return [
            self.entry(issue, [name for name, waived in used.items() if waived is issue], requirements)
            for issue in self.issues
        ]

    def waive_as_shipped(self, case: Case) -> Issue | None:
        """Return the waiver of a case that was found on the engine as it is shipped, before that was repaired."""
        if case.known_issue is None or not self.repaired:
            return None
        shipped = Waivers(self.issues, version=self.version, today=self.today, worker=self.worker)
        return shipped.waive(case)

    def entry(self, issue: Issue, used_by: list[str], requirements: list[RequirementResult]) -> Waiver:
        """Return the row of one waiver."""
        if used_by:
            state = "used"
        elif (rate := rate_of(issue)) is not None and self.in_force(issue):
            state = f"{NOT_FOUND}, but {rate}"
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
            fingerprint=issue.fingerprint if isinstance(issue, KnownIssue) else None,
            says=issue.says if isinstance(issue, KnownIssue) else None,
            versions=issue.versions,
            reason=issue.reason,
            link=issue.link,
            finding=issue.finding,
            expires=issue.expires.isoformat() if issue.expires else None,
            state=state,
            cases=used_by,
        )


def without_end(issue: Issue) -> Issue:
    """Return an issue that never expires."""
    if isinstance(issue, Accepted):
        return Accepted(msgspec.structs.replace(issue.entry, expires=None), issue.record)
    return msgspec.structs.replace(issue, expires=None)


def rate_of(issue: Issue) -> str | None:
    """Return how often runs find an issue, where that takes luck; None if every run does."""
    shown = issue.record.shows if isinstance(issue, Accepted) else (issue,)
    return next((one.rate for one in shown if one.rate is not None), None)


def matches(issue: KnownIssue, case: Case | Seen) -> bool:
    """Return whether a waiver matches a case."""
    return (
        issue.requirement == case.requirement
        and fnmatch.fnmatchcase(case.cell, issue.cell)
        and (issue.signature is None or fnmatch.fnmatchcase(case.signature, issue.signature))
        and issue.fingerprint in (None, fingerprint(case.signature))
        and (issue.says is None or issue.says in case.sentence or issue.says in case.log_tail)
    )


def is_alike(record: FindingRecord, case: Case | Seen) -> bool:
    """Return whether a case has the signature of a finding's own case, or one that its record has for it.

    A record that says how its finding shows itself says in which cells: another cause may have the signature elsewhere.
    """
    own = (record.requirement, record.signature) == (case.requirement, case.signature)
    here = not record.shows or case.cell == record.found.cell
    return (own and here) or any(shows(one, case) for one in record.shows)


def describes(record: FindingRecord, case: Case | Seen) -> bool:
    """Return whether a case is what the own case of a finding is: in requirement, effect and all circumstances.

    The path of an adapter is no circumstance. Of wrong answers, the class says only with what was compared.
    """
    own, seen = record.signature.split("; "), case.signature.split("; ")
    about = case.requirement == record.requirement or case.requirement in MIXED
    effect = own[0] == seen[0] or {own[0], seen[0]} <= WRONG_ANSWERS
    alike = about and effect and set(own[1:]) - PATHS <= set(seen[1:])
    return alike or any(shows(one, case) for one in record.shows)


def may_be_of(record: FindingRecord, case: Case | Seen) -> bool:
    """Return whether a case has all that the cause of a finding needs to act."""
    emptied = record.needs_earlier_blocks and isinstance(case, Case) and is_first_after_reset(case)
    return record.may_act_in(case.signature) and not emptied


def is_first_after_reset(case: Case) -> bool:
    """Return whether the failing request is the first one after a reset of the prefix cache, with nothing running.

    A second tier or another side keeps its blocks at such a reset, and an attached server may have one: False.
    """
    failing = next((one for one in case.requests if one.request == case.failing_request), None)
    elsewhere = case.cell == ATTACHED.name or any(TRANSFER in one for one in case.engine_config.values())
    if failing is None or elsewhere:
        return False
    before = [one for one in case.requests if one is not failing and one.step <= failing.step]
    resets = (one for one in case.changes if one.kind == RESET and not one.refused and one.step < failing.step)
    return any(all(one.step < reset.step and one.finished <= reset.began for one in before) for reset in resets)


def has_circumstances(record: FindingRecord, case: Case | Seen) -> bool:
    """Return whether a case of any requirement has the class and all circumstances of a finding's own case."""
    return set(record.signature.split("; ")) - PATHS <= set(case.signature.split("; "))


def shows(one: Shows, case: Case | Seen) -> bool:
    """Return whether a case is what a record says of a finding without a repair."""
    return (
        one.requirement == case.requirement
        and fnmatch.fnmatchcase(case.cell, one.cell)
        and fnmatch.fnmatchcase(case.signature, one.signature)
        and (one.says is None or one.says in case.sentence or one.says in case.log_tail)
    )


def passes(issue: Issue | Waiver, requirements: list[RequirementResult]) -> bool:
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


def read_known_issues(path: Path | None) -> list[Issue]:
    """Return the waivers of the file; none without a file. Raises UsageError that names the faulty entry."""
    if path is None:
        return []
    try:
        raw = read_toml(path)
        unknown = sorted(set(raw) - TABLES)
        if unknown:
            raise UsageError(
                f"cannot use --known-issues {path}: unknown key {unknown[0]!r}; each entry begins with [[accepted]] or "
                "[[issue]]"
            )
        return [*accepted_of(raw, path), *issues_of(raw, path)]
    except (OSError, msgspec.MsgspecError, InvalidSpecifier) as problem:
        raise UsageError(f"cannot use --known-issues {path}: {problem}") from problem


def named_issues(text: str, folder: Path | None = None) -> Path:
    """Return the file that `--known-issues` names: the one that ships for an engine, or the path of the user's own.

    `folder`: to which a path is relative, if not the working folder.
    """
    path = (folder or Path()) / text
    declared = ENGINES[text].known_issues if text in ENGINES else None
    shipped = declared or (waivers_of(text) if text.isidentifier() else None)
    return path if shipped is None or path.is_file() else shipped


def accepted_of(raw: dict[str, object], path: Path) -> list[Accepted]:
    """Return the accepted findings of a file, with their records. Raises UsageError for an unknown or repeated one."""
    entries = msgspec.convert(raw.get("accepted", []), list[AcceptedFinding])
    records, found = read_records() if entries else {}, dict[tuple[str, str], Accepted]()
    for number, entry in enumerate(entries, start=1):
        SpecifierSet(entry.versions)
        place = f"cannot use --known-issues {path}: accepted finding {number}, {entry.finding!r},"
        if entry.finding not in records:
            raise UsageError(f"{place} is unknown; `coldproof findings` lists the findings")
        if not entry.reason.strip():
            raise UsageError(f"{place} has an empty reason: state why it may be accepted")
        if (entry.finding, entry.versions) in found:
            raise UsageError(f"{place} is there twice")
        found[entry.finding, entry.versions] = Accepted(entry, records[entry.finding])
    return list(found.values())


def issues_of(raw: dict[str, object], path: Path) -> list[KnownIssue]:
    """Return the accepted violations of a file whose cause no finding records. Raises UsageError."""
    issues = msgspec.convert(raw.get("issue", []), list[KnownIssue])
    named = any(issue.finding is not None for issue in issues)
    records, repairs = (read_records(), read_repairs()) if named else ({}, {})
    for number, issue in enumerate(issues, start=1):
        SpecifierSet(issue.versions)
        wrong = incomplete_entry(issue) or (
            issue.finding and misplaced(issue.finding, issue.versions, records, repairs)
        )
        if wrong:
            raise UsageError(f"cannot use --known-issues {path}: entry {number}, for {issue.requirement!r}, {wrong}")
    return issues


def misplaced(finding: str, versions: str, records: Collection[str], repairs: Mapping[str, Repair]) -> str:
    """Return why an entry with patterns cannot be about a finding, as text; empty if it can: no repair decides."""
    if finding not in records:
        return f"names the finding {finding!r}, which is unknown"
    repair = repairing(finding, repairs.values())
    if repair is None or not overlap(versions, repair.releases):
        return ""
    return (
        f"has patterns for the finding {finding!r}, about which its repair decides: write [[accepted]] with finding, "
        "versions, reason and expires in its place"
    )


def overlap(one: str, other: str) -> bool:
    """Return whether a version that one of these specifiers names is in both."""
    both = SpecifierSet(one, prereleases=True) & SpecifierSet(other, prereleases=True)
    return any(both.contains(part.version.removesuffix(".*")) for part in both)


def today() -> datetime.date:
    """Return the date in UTC, so that a waiver expires at the same time everywhere."""
    return datetime.datetime.now(datetime.UTC).date()
