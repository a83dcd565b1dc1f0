"""Proposes entries for the known-issues file at the end of a run, for a person to review.

A proposal waives nothing: its link is empty, and a file with an empty link is refused. No existing file is overwritten.
"""

from __future__ import annotations

import datetime
import glob
from collections import defaultdict
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from coldproof.harness.case.known_issues import AcceptedFinding, KnownIssue
from coldproof.harness.judgement.verdict import verdict_of_case
from coldproof.harness.options import PROPOSED_SUFFIX
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results, Waiver
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import fingerprint
from coldproof.reports.exports.write import write_text
from coldproof.reports.format import toml

# Enough time to release a fix, short enough that the entry is reviewed again.
EXPIRES_AFTER = datetime.timedelta(days=90)
FIELDS = {
    KnownIssue: ("requirement", "cell", "signature", "fingerprint", "versions", "reason", "link", "expires"),
    AcceptedFinding: ("finding", "versions", "reason", "expires"),
}
REVIEW_LINES = (
    "This file waives nothing yet. Review each entry: read its case, find or write the upstream report, and replace",
    "the link and the reason. The reason below is only the finding of the case; an accepted finding has none yet.",
    "Coldproof refuses a known-issues file in which an entry has no link or no reason. Copy the reviewed entries into",
    "another file: the next run removes the proposals in its report folder.",
)
NO_VERSION = "The engine does not report its version, so no entry applies to it."


class Proposal(msgspec.Struct, frozen=True):
    """A proposed entry, and the cases that it would waive."""

    issue: KnownIssue | AcceptedFinding
    cases: tuple[str, ...]


def proposed_file(given: str | None, known_issues: Path | None, folder: Path) -> Path | None:
    """Return the file for proposals: None without the option, the given file, or for an empty name a file in the report
    folder, named after the known-issues file in use.
    """
    if given is None:
        return None
    stem = known_issues.stem if known_issues is not None else "known_issues"
    return Path(given) if given else folder / f"{stem}{PROPOSED_SUFFIX}"


def write_proposals(path: Path, results: Results, waivers: list[Waiver], *, folder: Path, today: datetime.date) -> int:
    """Write a run's proposals, and return their number. `folder` is the report folder.

    Raises OSError if the file exists or cannot be written.
    """
    proposals = propose(results, today=today)
    if path.exists():
        raise FileExistsError(f"{path} exists and will not be overwritten")
    write_text(path, to_toml(proposals, results, waivers, folder=folder))
    return len(proposals)


def propose(results: Results, *, today: datetime.date) -> list[Proposal]:
    """Return an entry for each finding and each other violation that is not waived, in the order of discovery."""
    alike: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    findings: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in results.cases:
        if verdict_of_case(case)[0] is not Verdict.VIOLATED:
            continue
        if case.attribution is not None and case.attribution.is_known:
            for name in case.attribution.findings:
                findings[name, version_range(case.engine_version)].append(case)
        else:
            alike[case.requirement, case.signature, version_range(case.engine_version)].append(case)
    ran = {one.id: {cell.cell for cell in one.cells if cell.examples} for one in results.requirements}
    accepted = [
        Proposal(AcceptedFinding(name, versions, "", today + EXPIRES_AFTER), tuple(case.id for case in cases))
        for (name, versions), cases in findings.items()
    ]
    return accepted + [
        proposal(cases, cell, today=today)
        for (requirement, _, _), found in alike.items()
        for cell, cases in group_by_cell(found, ran.get(requirement, set())).items()
    ]


def group_by_cell(cases: list[Case], ran: set[str]) -> dict[str, list[Case]]:
    """Group cases by cell pattern: `*` if all of several cells failed, else the name of each cell."""
    apart: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        apart[glob.escape(case.cell)].append(case)
    failed = {case.cell for case in cases}
    return {"*": cases} if len(failed) > 1 and ran <= failed else apart


def proposal(cases: list[Case], cell: str, *, today: datetime.date) -> Proposal:
    """Return the entry for cases of one requirement and signature. The signature is escaped to match only itself."""
    first = cases[0]
    issue = KnownIssue(
        requirement=first.requirement,
        cell=cell,
        signature=glob.escape(first.signature),
        fingerprint=fingerprint(first.signature),
        versions=version_range(first.engine_version),
        reason=first.sentence,
        link="",
        expires=today + EXPIRES_AFTER,
    )
    return Proposal(issue, tuple(case.id for case in cases))


def version_range(version: str | None) -> str:
    """Return a specifier for the minor series of a version, with its release candidates; empty without a version."""
    try:
        known = Version(version or "")
    except InvalidVersion:
        return ""
    epoch = f"{known.epoch}!" if known.epoch else ""
    return f">={epoch}{known.major}.{known.minor}.dev0,<{epoch}{known.major}.{known.minor + 1}.dev0"


def to_toml(proposals: list[Proposal], results: Results, waivers: list[Waiver], *, folder: Path) -> str:
    """Return the text of the file: instructions, proposed entries, and entries in use that may be removed."""
    engine = f"{results.engine.name} {results.engine.version or ''}" if results.engine else "no engine"
    head = [f"Known issues proposed by the Coldproof run of {results.started} on {engine}.", *REVIEW_LINES]
    if not proposals:
        head.append("No proposals: this run has no violation that is not waived.")
    blocks = [comments(head), *(entry(one, folder) for one in proposals), *removals(waivers)]
    return "\n\n".join(blocks) + "\n"


def comments(lines: list[str]) -> str:
    """Return the lines as TOML comments."""
    return "\n".join(map(toml.comment, lines))


def entry(proposal: Proposal, folder: Path) -> str:
    """Return one proposal as TOML, with the paths of its cases."""
    issue = proposal.issue
    notes = [f"Review {folder / 'cases' / f'{case}.json'}" for case in proposal.cases]
    notes += [] if issue.versions else [NO_VERSION]
    table = "[[accepted]]" if isinstance(issue, AcceptedFinding) else "[[issue]]"
    lines = (f"{key} = {literal(getattr(issue, key))}" for key in FIELDS[type(issue)])
    return "\n".join([comments(notes), table, *lines])


def removals(waivers: list[Waiver]) -> list[str]:
    """Return comments that list the entries of the file in use that waived nothing."""
    idle = [waiver for waiver in waivers if waiver.state in ("stale", "expired")]
    lines = [f"{one.place}: {one.state_text}" for one in idle]
    return [comments(["To remove from the file in use, if you agree:", *lines])] if lines else []


def literal(value: str | datetime.date) -> str:
    """Return a value as TOML."""
    return value.isoformat() if isinstance(value, datetime.date) else toml.literal(value)
