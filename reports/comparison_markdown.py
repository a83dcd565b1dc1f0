"""A comparison as Markdown, for a CI step summary or a comment. Text of the engines stays text, as in the summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reports.comparison import NO_CASE, Comparison, Finding, Journey, Kind, headline, of_kind
from reports.markdown import MOST, code, escaped, section
from reports.schema import Verdict
from reports.text import number

_LISTED = tuple(kind for kind in Kind if kind is not Kind.UNCHANGED)
_NAMED = 3  # case ids of each run


def comparison_markdown(comparison: Comparison) -> str:
    """Headline, what the runs were, what to be careful about, findings worst first, and what is slower."""
    blocks = ["## Coldproof: two runs compared", "", f"**{escaped(headline(comparison))}**", ""]
    blocks += [*_doubts(comparison), *_facts(comparison)]
    for kind in _LISTED:
        blocks += section(kind.value.capitalize(), _findings(of_kind(comparison, kind)))
    blocks += [*_slower(comparison), *_unchanged(of_kind(comparison, Kind.UNCHANGED))]
    return "\n".join(blocks).rstrip() + "\n"


def _doubts(comparison: Comparison) -> list[str]:
    return section("Read with care", (f"- {escaped(doubt)}" for doubt in comparison.doubts))


def _facts(comparison: Comparison) -> list[str]:
    rows = [f"| {escaped(f.name)} | {escaped(f.before)} | {escaped(f.now)} |" for f in comparison.facts]
    return ["| | Before | Now |", "|---|---|---|", *rows, ""]


def _findings(findings: Iterable[Finding]) -> Iterator[str]:
    for finding in findings:
        yield "\n".join([f"- **{escaped(finding.requirement)}** {_summary(finding)}", *_details(finding)])


def _summary(finding: Finding) -> str:
    if finding.case is None:
        return escaped(finding.title)
    return f"{finding.case.failure_class.value}: {escaped(finding.case.sentence)}"


def _details(finding: Finding) -> Iterator[str]:
    """A nested item each: where, by which signature, how to see it again."""
    for journey in finding.journeys:
        yield f"  - {escaped(_way(journey))}, in {', '.join(map(escaped, journey.cells))}"
    if finding.kind in (Kind.FIXED, Kind.NEWLY_EXERCISED):
        yield f"  - {number(finding.requests)} requests now"
    if finding.unsaved:
        yield "  - No case was saved: nobody can tell which failure it is."
    if finding.signature != NO_CASE:
        yield f"  - Signature: {code(finding.signature)}"
    if finding.gone:
        yield f"  - Not seen this time: {', '.join(map(code, finding.gone))}"
    if finding.elsewhere:
        yield f"  - Before, the same was seen in {', '.join(map(escaped, finding.elsewhere))}"
    if finding.case is not None and finding.case.known_issue is not None:
        yield f"  - Known issue: {escaped(finding.case.known_issue)}"
    if finding.case is not None:
        yield f"  - Cases: {_ids(finding.cases_before)} before, {_ids(finding.cases_now)} now"
        yield f"  - Replay: {code(finding.case.replay)}"


def _said(verdict: Verdict | None) -> str:
    return verdict.value if verdict is not None else "not in the run"


def _way(journey: Journey) -> str:
    """From what to what, and why nothing is decided any more."""
    why = f": {journey.reason}" if journey.reason else ""
    return f"{_said(journey.was)} → {_said(journey.now)}{why}"


def _ids(ids: list[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return (", ".join(map(escaped, ids[:_NAMED])) or "none") + more


def _slower(comparison: Comparison) -> list[str]:
    rows = [
        f"| {escaped(row.what)} | {row.before} | {row.now} | by a factor of {row.factor:.1f} ({row.counted}) |"
        for row in comparison.slower
    ]
    head = ["| What | Before | Now | Slower |", "|---|--:|--:|---|"] if rows else []
    more = [f"\nAnd {len(rows) - MOST} more."] if len(rows) > MOST else []
    return ["### Slower", "", *head, *rows[:MOST], *more, ""] if rows else []


def _unchanged(findings: list[Finding]) -> list[str]:
    journeys = [journey for finding in findings for journey in finding.journeys]
    conform = sum(len(journey.cells) for journey in journeys if journey.now is Verdict.CONFORMS)
    undecided = sum(len(journey.cells) for journey in journeys) - conform
    return [f"Unchanged, by requirement and cell: {conform} conform in both runs, {undecided} not decided in either."]
