"""Several engines side by side as Markdown, for a CI step summary. Text of an engine stays text, as in the summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from reports import comparability, overview
from reports.columns import Column
from reports.likeness import Difference, differences, notes, standing_together
from reports.lineup import Lineup, Row, Square
from reports.markdown import MOST, escaped, section
from reports.schema import Verdict
from reports.text import day_and_time, duration, listed

_LONGEST = 300  # characters of a reason


def lineup_markdown(lineup: Lineup) -> str:
    """A line for each engine, what can be compared, requirement x engine, and why what does not conform does not."""
    blocks = ["## Coldproof: engines side by side", "", *_table(_HEAD, map(_engine, lineup.columns))]
    blocks += [*_likeness(lineup), *_matrix(lineup), *section("Why", _reasons(lineup))]
    return "\n".join(blocks).rstrip() + "\n"


_HEAD = ("Engine", "Verdicts", "First verdict after", "All after", "Rule", "Oracle", "Started")


def _engine(column: Column) -> list[str]:
    results, traits = column.results, comparability.traits(column.results)
    return [
        f"**{escaped(column.label)}** {escaped(', '.join(column.headed))}",
        escaped("".join(f"{mark}: " for mark in column.marks) + column.counted),
        duration(results.timing.command_to_first_verdict),
        duration(results.duration_s),
        escaped(traits["rule"]),
        escaped(traits["oracle"]),
        escaped(day_and_time(results.started)),
    ]


def _likeness(lineup: Lineup) -> list[str]:
    said = [*standing_together(lineup.runs), *notes(lineup.runs), *map(_difference, differences(lineup.runs))]
    return section("What can be compared", (f"- {escaped(sentence, 2000)}" for sentence in said))


def _difference(difference: Difference) -> str:
    return f"Other {difference.what}: {difference.told}. {difference.consequence}"


def _matrix(lineup: Lineup) -> list[str]:
    rows = [row for area in lineup.areas for row in area.rows]
    if not rows:
        return ["No run has a verdict that counts.", ""]
    head = ["Requirement", *(escaped(column.label) for column in lineup.columns)]
    more = [f"And {len(rows) - MOST} more requirements.", ""] if len(rows) > MOST else []
    return ["### Requirements", "", *_table(head, (_row(row, lineup.columns) for row in rows[:MOST])), *more]


def _row(row: Row, columns: list[Column]) -> list[str]:
    return [f"{escaped(row.id)} {escaped(row.title)}", *map(_square, row.squares, columns)]


def _square(square: Square | None, column: Column) -> str:
    if square is None:
        return column.absent
    verdict = square.requirement.verdict
    return ", ".join([f"{overview.GLYPH[verdict]} {verdict.value}", *square.figures])


def _reasons(lineup: Lineup) -> Iterator[str]:
    """Worst first, for a long list is cut; engines for which the same holds are told together."""
    alike: dict[tuple[str, Verdict, str, str], list[str]] = defaultdict(list)
    for row in (row for area in lineup.areas for row in area.rows):
        for square in row.squares:
            if square is not None and square.requirement.verdict is not Verdict.CONFORMS:
                why = square.requirement.reason.rstrip(".") or "no reason was recorded"
                alike[row.id, square.requirement.verdict, why, square.help].append(square.column.label)
    for (name, verdict, why, helps), labels in sorted(alike.items(), key=lambda one: _rank(one[0][1])):
        what = f" What would help: {escaped(helps, _LONGEST)}." if helps else ""
        who = f"{overview.GLYPH[verdict]} {verdict.value} {escaped(listed(labels), _LONGEST)}"
        yield f"- **{escaped(name)}** {who}: {escaped(why, _LONGEST)}.{what}"


def _rank(verdict: Verdict) -> int:
    return overview.WORST_FIRST.index(verdict)


def _table(head: Iterable[str], rows: Iterable[list[str]]) -> list[str]:
    names = list(head)
    return [_line(names), "|" + "---|" * len(names), *map(_line, rows), ""]


def _line(squares: Iterable[str]) -> str:
    return f"| {' | '.join(squares)} |"
