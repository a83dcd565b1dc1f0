"""Renders a comparison as Markdown, for a CI step summary or a comment. Engine output is escaped."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.reports.comparison.comparison import (
    NO_CASE,
    ChangeKind,
    Comparison,
    Finding,
    Transition,
    headline,
    of_kind,
)
from coldproof.reports.format.markdown import MAX_ITEMS, code, escaped, section, table
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import number
from coldproof.reports.schema.verdict import Verdict

_LISTED = tuple(kind for kind in ChangeKind if kind is not ChangeKind.UNCHANGED)
_NAMED = 3  # case ids of each run


def comparison_markdown(comparison: Comparison) -> str:
    """Return the headline, the warnings, the facts of both runs, the findings (most urgent first) and the slowdowns."""
    blocks = ["## Coldproof: two runs compared", "", f"**{escaped(headline(comparison))}**", ""]
    blocks += section("Comparability warnings", (f"- {escaped(warning)}" for warning in comparison.warnings))
    blocks += _facts(comparison)
    for kind in _LISTED:
        blocks += section(kind.value.capitalize(), map(_finding, of_kind(comparison, kind)))
    blocks += [*_slower(comparison), *_unchanged(of_kind(comparison, ChangeKind.UNCHANGED))]
    return "\n".join(blocks).rstrip() + "\n"


def _facts(comparison: Comparison) -> list[str]:
    rows = [f"| {escaped(name)} | {' | '.join(map(escaped, values))} |" for name, values in comparison.facts]
    return ["| | Before | Now |", "|---|---|---|", *rows, ""]


def _finding(finding: Finding) -> str:
    case = finding.case
    what = f"{case.failure_class.value}: {escaped(case.sentence)}" if case is not None else escaped(finding.title)
    return "\n".join([f"- **{escaped(finding.requirement)}** {what}", *_details(finding)])


def _details(finding: Finding) -> Iterator[str]:
    """Yield a nested list item for each detail: cells, signature, cases and the command to replay."""
    for transition in finding.transitions:
        yield f"  - {escaped(_way(transition))}, in {', '.join(map(escaped, transition.cells))}"
    if finding.kind in (ChangeKind.FIXED, ChangeKind.NEWLY_EXERCISED):
        yield f"  - {number(finding.requests)} requests now"
    if finding.unsaved:
        yield "  - No case was saved, so the failure cannot be identified."
    if finding.signature != NO_CASE:
        yield f"  - Signature: {code(finding.signature)}"
    if finding.gone:
        yield f"  - Did not occur this time: {', '.join(map(code, finding.gone))}"
    if finding.elsewhere:
        yield f"  - Before, the same failure occurred in {', '.join(map(escaped, finding.elsewhere))}"
    if finding.case is not None and finding.case.known_issue is not None:
        yield f"  - Known issue: {escaped(finding.case.known_issue)}"
    if finding.case is not None:
        yield f"  - Cases: {_ids(finding.cases_before)} before, {_ids(finding.cases_now)} now"
        yield f"  - Replay: {code(command_line(finding.case.replay))}"


def _way(transition: Transition) -> str:
    """Return the change of the verdict, and why there is none now."""
    was, now = (verdict.value if verdict else "not in the run" for verdict in (transition.was, transition.now))
    return f"{was} → {now}" + (f": {transition.reason}" if transition.reason else "")


def _ids(ids: list[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return (", ".join(map(escaped, ids[:_NAMED])) or "none") + more


def _slower(comparison: Comparison) -> list[str]:
    found = comparison.slowdowns
    rows = (
        (escaped(r.what), r.before, r.now, f"by a factor of {r.factor:.1f} ({r.counted})") for r in found[:MAX_ITEMS]
    )
    lines = table(("What", "Before", "Now", "Slower"), rows, numbers=("Before", "Now"))
    more = [f"And {len(found) - MAX_ITEMS} more.", ""] if len(found) > MAX_ITEMS else []
    return ["### Slower", "", *lines, *more] if found else []


def _unchanged(findings: list[Finding]) -> list[str]:
    transitions = [transition for finding in findings for transition in finding.transitions]
    conform = sum(len(transition.cells) for transition in transitions if transition.now is Verdict.CONFORMS)
    undecided = sum(len(transition.cells) for transition in transitions) - conform
    return [
        f"Unchanged, by requirement and cell: {conform} conform in both runs, {undecided} have no verdict in either."
    ]
