"""Entries for the known-issues file, proposed at the end of a run for a person to review.

Invariant: a proposal waives nothing. Its link is empty, a file with an empty link is refused, and no file that is there
is written over.
"""

from __future__ import annotations

import datetime
import glob
import json
from collections import defaultdict
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from harness.known_issues import KnownIssue
from harness.options import PROPOSED
from harness.verdict import verdict_of_case
from reports.causes import fingerprint
from reports.schema import Case, Results, Verdict, Waiver
from reports.text import one_line, storable
from reports.waivers import scope, state_in_words
from reports.write import write_text

LASTS = datetime.timedelta(days=90)  # time for a fix to be released, and not for the reason to be forgotten
KEYS = ("requirement", "cell", "signature", "fingerprint", "versions", "reason", "link", "expires")
COMMENT = 2000  # characters; paths are long
REVIEW = (
    "Nothing in this file waives anything yet. A person must review each entry: look at its case, find or write the",
    "upstream report, and give the entry a link and a reason of its own; the reason below is only what the case says.",
    "A known-issues file in which an entry has no link or no reason is not accepted. Copy what you stand for into your",
    "own file: a run removes the proposals that an earlier one left in its report folder.",
)
NO_VERSION = "The engine told no version that an entry could be for: until it does, no entry applies to it."


class Proposal(msgspec.Struct, frozen=True):
    """An entry, and the cases that it would waive."""

    issue: KnownIssue
    cases: tuple[str, ...]


def proposed_file(given: str | None, known_issues: Path | None, folder: Path) -> Path | None:
    """Where proposals go: nowhere unless they are asked for, to the file that is named, or with an empty name into the
    report folder, named after the known issues in use.
    """
    if given is None:
        return None
    stem = known_issues.stem if known_issues is not None else "known_issues"
    return Path(given) if given else folder / f"{stem}{PROPOSED}"


def write_proposals(path: Path, results: Results, waivers: list[Waiver], *, folder: Path, today: datetime.date) -> int:
    """Write a run's proposals, and say how many there are. `folder` holds its cases.

    Never writes over a file. Raises OSError when there is one, or when it cannot be written.
    """
    proposals = propose(results, today=today)
    if path.exists():
        raise FileExistsError(f"{path} is there already and is left as it is")
    write_text(path, as_toml(proposals, results, waivers, folder=folder))
    return len(proposals)


def propose(results: Results, *, today: datetime.date) -> list[Proposal]:
    """An entry for each violation that nobody waives, in the order in which they were found."""
    alike: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    for case in results.cases:
        if verdict_of_case(case)[0] is Verdict.VIOLATED:
            alike[case.requirement, case.signature, versions(case.engine_version)].append(case)
    return [
        proposal(cases, cell, today=today)
        for (requirement, _, _), found in alike.items()
        for cell, cases in by_cell(found, cells_run(results, requirement)).items()
    ]


def cells_run(results: Results, requirement: str) -> set[str]:
    """The cells in which a requirement had any example."""
    return {cell.cell for one in results.requirements if one.id == requirement for cell in one.cells if cell.examples}


def by_cell(cases: list[Case], ran: set[str]) -> dict[str, list[Case]]:
    """One pattern for all cells where each of several that ran failed so; else each by its name.

    One cell alone says nothing of the others.
    """
    apart: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        apart[glob.escape(case.cell)].append(case)
    failed = {case.cell for case in cases}
    return {"*": cases} if len(failed) > 1 and ran <= failed else apart


def proposal(cases: list[Case], cell: str, *, today: datetime.date) -> Proposal:
    """The entry for cases of one requirement and signature. The signature is a pattern that means itself alone."""
    first = cases[0]
    issue = KnownIssue(
        requirement=first.requirement,
        cell=cell,
        signature=glob.escape(first.signature),
        fingerprint=fingerprint(first.signature),
        versions=versions(first.engine_version),
        reason=first.sentence,
        link="",
        expires=today + LASTS,
    )
    return Proposal(issue, tuple(case.id for case in cases))


def versions(version: str | None) -> str:
    """The minor series of an engine's version, release candidates included; empty where it tells none."""
    try:
        known = Version(version or "")
    except InvalidVersion:
        return ""
    epoch = f"{known.epoch}!" if known.epoch else ""
    return f">={epoch}{known.major}.{known.minor}.dev0,<{epoch}{known.major}.{known.minor + 1}.dev0"


def as_toml(proposals: list[Proposal], results: Results, waivers: list[Waiver], *, folder: Path) -> str:
    """The file: what a person has to do, the entries, and those that are in use and may go."""
    engine = f"{results.engine.name} {results.engine.version or ''}" if results.engine else "no engine"
    head = [f"Known issues proposed by the Coldproof run of {results.started} on {engine}.", *REVIEW]
    if not proposals:
        head.append("There is nothing to propose: this run has no violation that is not waived.")
    blocks = [comments(head), *(entry(one, folder) for one in proposals), *removals(waivers)]
    return "\n\n".join(blocks) + "\n"


def comments(lines: list[str]) -> str:
    """Lines of a comment."""
    return "\n".join(map(comment, lines))


def entry(proposal: Proposal, folder: Path) -> str:
    """One proposal with the place of its cases."""
    issue = proposal.issue
    notes = [f"Review {folder / 'cases' / f'{case}.json'}" for case in proposal.cases]
    notes += [] if issue.versions else [NO_VERSION]
    return "\n".join([comments(notes), "[[issue]]", *(f"{key} = {literal(getattr(issue, key))}" for key in KEYS)])


def removals(waivers: list[Waiver]) -> list[str]:
    """What stands in the file in use and waived nothing: comments, for a person to act on."""
    idle = [waiver for waiver in waivers if waiver.state in ("stale", "expired")]
    lines = [f"{one.requirement} in {one.cell}, '{scope(one)}': {state_in_words(one)}" for one in idle]
    return [comments(["To remove from the file in use, if you agree:", *lines])] if lines else []


def comment(words: str) -> str:
    """A comment of one line, whatever is in it."""
    return f"# {one_line(words, COMMENT)}"


def literal(value: str | datetime.date) -> str:
    """A value as TOML. JSON's escapes are TOML's too; what cannot be seen is escaped as well, so that a reader of the
    file sees all that is in it.
    """
    if isinstance(value, datetime.date):
        return value.isoformat()
    quoted = json.dumps(storable(value), ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
