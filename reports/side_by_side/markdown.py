"""Renders several engines side by side as Markdown, for a CI step summary. Engine output is escaped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from coldproof.reports.format.markdown import MAX_ITEMS, escaped, section, table
from coldproof.reports.format.text import day_and_time, duration, listed
from coldproof.reports.schema.verdict import Verdict
from coldproof.reports.side_by_side.columns import Column
from coldproof.reports.side_by_side.comparable_runs import Difference, comparable_groups, differences, notes
from coldproof.reports.side_by_side.matrix import EngineMatrix, MatrixCell, Row
from coldproof.reports.views import overview, run_facts

_LONGEST = 300  # characters of a reason


def matrix_markdown(lineup: EngineMatrix) -> str:
    """Return the engines, which runs are comparable, the matrix, and the reasons of verdicts other than CONFORMS."""
    blocks = ["## Coldproof: engines side by side", "", *table(_HEAD, map(_engine, lineup.columns))]
    blocks += [*_likeness(lineup), *_matrix(lineup), *section("Why", _reasons(lineup))]
    return "\n".join(blocks).rstrip() + "\n"


_HEAD = ("Engine", "Verdicts", "First verdict after", "All after", "Rule", "Oracle", "Started")


def _engine(column: Column) -> list[str]:
    results, traits = column.results, run_facts.traits(column.results)
    return [
        f"**{escaped(column.label)}** {escaped(', '.join(column.headed))}",
        escaped("".join(f"{mark}: " for mark in column.marks) + column.counted),
        duration(results.timing.command_to_first_verdict),
        duration(results.duration_s),
        escaped(traits["rule"]),
        escaped(traits["oracle"]),
        escaped(day_and_time(results.started)),
    ]


def _likeness(lineup: EngineMatrix) -> list[str]:
    said = [*comparable_groups(lineup.columns), *notes(lineup.columns), *map(_difference, differences(lineup.columns))]
    return section("What can be compared", (f"- {escaped(sentence, 2000)}" for sentence in said))


def _difference(difference: Difference) -> str:
    return f"Different {difference.what}: {difference.values}. {difference.consequence}"


def _matrix(lineup: EngineMatrix) -> list[str]:
    rows = [row for area in lineup.areas for row in area.rows]
    if not rows:
        return ["No run has a valid verdict.", ""]
    head = ["Requirement", *(escaped(column.label) for column in lineup.columns)]
    more = [f"And {len(rows) - MAX_ITEMS} more requirements.", ""] if len(rows) > MAX_ITEMS else []
    return ["### Requirements", "", *table(head, (_row(row, lineup.columns) for row in rows[:MAX_ITEMS])), *more]


def _row(row: Row, columns: list[Column]) -> list[str]:
    return [f"{escaped(row.id)} {escaped(row.title)}", *map(_matrix_cell, row.cells, columns)]


def _matrix_cell(cell: MatrixCell | None, column: Column) -> str:
    if cell is None:
        return column.absent
    verdict = cell.requirement.verdict
    return ", ".join([f"{overview.GLYPH[verdict]} {verdict.value}", *cell.figures])


def _reasons(lineup: EngineMatrix) -> Iterator[str]:
    """Yield the reasons, worst verdict first, because long lists are cut. Engines with the same reason share a line."""
    alike: dict[tuple[str, Verdict, str, str], list[str]] = defaultdict(list)
    for row in (row for area in lineup.areas for row in area.rows):
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
