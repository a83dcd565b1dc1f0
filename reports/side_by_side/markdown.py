"""Renders runs side by side as Markdown, for a CI step summary or a comment. Engine output is escaped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.markdown import MAX_ITEMS, code, escaped, section, table
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import listed, number
from coldproof.reports.side_by_side.changes import NO_CASE, Change, ChangeKind, Transition, by_kind
from coldproof.reports.side_by_side.columns import Column
from coldproof.reports.side_by_side.comparable_runs import Difference, comparable_groups, differences, notes
from coldproof.reports.side_by_side.matrix import MatrixCell, Row, SideBySide
from coldproof.reports.side_by_side.slowdowns import Slowdown
from coldproof.reports.side_by_side.violations import explanation
from coldproof.reports.views import overview

_LONGEST = 300  # characters of a reason
_NAMED = 3  # case ids of each run


def side_by_side_markdown(shown: SideBySide) -> str:
    """Return the headline, the facts of the runs, which are comparable, what changed, the matrix, and the reasons."""
    blocks = [f"## Coldproof: {shown.kind.title}", "", f"**{escaped(shown.headline)}**", ""]
    blocks += [*_facts(shown), *_likeness(shown)]
    for kind, found in by_kind(shown.changes):
        blocks += _unchanged(found) if kind is ChangeKind.UNCHANGED else _section(kind, found, len(shown.columns))
    blocks += [
        *_slower(shown.slower, several=len(shown.columns) > 2),
        *_matrix(shown),
        *section("Why", _reasons(shown)),
    ]
    return "\n".join(blocks).rstrip() + "\n"


def _facts(shown: SideBySide) -> list[str]:
    """Return the facts of all runs. A run's marks, such as FAULT INJECTED, stand in its result."""
    heads = ("", *(escaped(column.label) for column in shown.columns))
    return table(heads, ((escaped(name), *map(escaped, values)) for name, values in shown.facts))


def _likeness(shown: SideBySide) -> list[str]:
    kind, runs = shown.kind, shown.columns
    said = [
        *comparable_groups(runs, series=kind.series),
        *notes(runs, series=kind.series, by_time=kind.by_time),
        *map(_difference, differences(runs, series=kind.series)),
    ]
    return section("What can be compared", (f"- {escaped(sentence, 2000)}" for sentence in said))


def _difference(difference: Difference) -> str:
    return f"Different {difference.what}: {difference.values}. {difference.consequence}"


def _section(kind: ChangeKind, found: Sequence[Change], runs: int) -> list[str]:
    return section(kind.value.capitalize(), ("\n".join(_change(one, several=runs > 2)) for one in found))


def _change(change: Change, *, several: bool) -> Iterator[str]:
    """Yield the change, and a nested list item for each detail: cells, signature, cases and the command to replay."""
    case = change.case
    what = f"{case.failure_class.value}: {escaped(case.sentence)}" if case is not None else escaped(change.title)
    yield f"- **{escaped(change.requirement)}** {what}"
    for transition in change.transitions:
        way = _way(transition, change.column.label if several else "")
        yield f"  - {escaped(way)}, in {', '.join(map(escaped, transition.cells))}"
    if change.kind in (ChangeKind.FIXED, ChangeKind.NEWLY_EXERCISED):
        yield f"  - {number(change.requests)} requests now"
    if change.unsaved:
        yield "  - No case was saved, so the failure cannot be identified."
    if change.signature != NO_CASE:
        yield f"  - Signature: {code(change.signature)}"
    if change.gone:
        yield f"  - Did not occur this time: {', '.join(map(code, change.gone))}"
    if change.elsewhere:
        yield f"  - Before, the same failure occurred in {', '.join(map(escaped, change.elsewhere))}"
    if case is not None:
        known = explanation(change.of, case)
        if known is not None:
            yield f"  - Known issue: {escaped(known.cause)}"
        yield f"  - Cases: {_ids(change.cases_before)} before, {_ids(change.cases_now)} now"
        yield f"  - Replay: {code(command_line(case.replay))}"


def _way(transition: Transition, now: str) -> str:
    """Return the change of the verdict, and why there is none now. `now`: the later of several runs."""
    words = [verdict.value if verdict else "not in the run" for verdict in (transition.was, transition.now)]
    if now:
        words = [f"{word} on {label}" for word, label in zip(words, (transition.before, now), strict=True)]
    return " → ".join(words) + (f": {transition.reason}" if transition.reason else "")


def _ids(ids: list[str]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return (", ".join(map(escaped, ids[:_NAMED])) or "none") + more


def _unchanged(found: Sequence[Change]) -> list[str]:
    transitions = [transition for change in found for transition in change.transitions]
    conform = sum(len(transition.cells) for transition in transitions if transition.now is Verdict.CONFORMS)
    undecided = sum(len(transition.cells) for transition in transitions) - conform
    said = f"{conform} conform in both runs, {undecided} have no verdict in either"
    return [f"Unchanged, by requirement and cell: {said}.", ""]


def _slower(found: Sequence[Slowdown], *, several: bool) -> list[str]:
    rows = (
        (
            escaped(f"{' → '.join(one.runs)}: {one.what}" if several else one.what),
            *(one.before, one.now, f"by a factor of {one.factor:.1f} ({one.counted})"),
        )
        for one in found[:MAX_ITEMS]
    )
    lines = table(("What", "Before", "Now", "Slower"), rows, numbers=("Before", "Now"))
    more = [f"And {len(found) - MAX_ITEMS} more.", ""] if len(found) > MAX_ITEMS else []
    return ["### Slower", "", *lines, *more] if found else []


def _matrix(shown: SideBySide) -> list[str]:
    rows = [row for area in shown.areas for row in area.rows]
    if not rows:
        return ["No run has a valid verdict.", ""]
    head = ["Requirement", *(escaped(column.label) for column in shown.columns)]
    more = [f"And {len(rows) - MAX_ITEMS} more requirements.", ""] if len(rows) > MAX_ITEMS else []
    return ["### Requirements", "", *table(head, (_row(row, shown.columns) for row in rows[:MAX_ITEMS])), *more]


def _row(row: Row, columns: list[Column]) -> list[str]:
    return [f"{escaped(row.id)} {escaped(row.title)}", *map(_matrix_cell, row.cells, columns)]


def _matrix_cell(cell: MatrixCell | None, column: Column) -> str:
    if cell is None:
        return column.absent
    verdict = cell.requirement.verdict
    changed = [cell.change.value] if cell.change else []
    return ", ".join([f"{overview.GLYPH[verdict]} {verdict.value}", *changed, *cell.figures])


def _reasons(shown: SideBySide) -> Iterator[str]:
    """Yield the reasons, worst verdict first, because long lists are cut. Runs with the same reason share a line."""
    alike: dict[tuple[str, Verdict, str, str], list[str]] = defaultdict(list)
    for row in (row for area in shown.areas for row in area.rows):
        for cell in row.cells:
            if cell is not None and cell.requirement.verdict is not Verdict.CONFORMS:
                why = cell.requirement.reason.rstrip(".") or "no reason was recorded"
                alike[row.id, cell.requirement.verdict, why, cell.help].append(cell.column.label)
    for (name, verdict, why, helps), labels in sorted(
        alike.items(), key=lambda one: overview.WORST_FIRST.index(one[0][1])
    ):
        what = f" What would help: {escaped(helps, _LONGEST)}." if helps else ""
        who = f"{overview.GLYPH[verdict]} {verdict.value} {escaped(listed(labels), _LONGEST)}"
        yield f"- **{escaped(name)}** {who}: {escaped(why, _LONGEST)}.{what}"
