"""Builds the matrix of requirements by run. Each cell of the matrix has one run's verdict and a link to its report.

Invariant: nothing is summed over runs. A requirement that a run does not have is an empty cell, never a verdict. A run
whose detector failed its self-test has only empty cells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coldproof.harness.schema.results import Cause, RequirementResult, StatementParts
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import causes
from coldproof.reports.format.text import many, slug, unique
from coldproof.reports.side_by_side.changes import STILL, Change, ChangeKind, by_kind, changes, conclusion
from coldproof.reports.side_by_side.columns import Column, Source, columns
from coldproof.reports.side_by_side.kinds import Kind
from coldproof.reports.side_by_side.slowdowns import Slowdown, slowdowns
from coldproof.reports.views import overview, run_facts
from coldproof.reports.views.requirements import (
    WIDE_MATRIX,
    Area,
    RequirementView,
    area,
    area_titles,
    requirement_views,
    verdict_class,
)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One requirement in one run. `link` leads to the requirement in that run's own report; "" if there is none.

    `help`: what would help to get a conclusive verdict; "" if nothing is missing. `change`: the most urgent change from
    the run before; None if there is none, or in no series.
    """

    column: Column
    requirement: RequirementResult
    link: str
    causes: list[Cause]
    help: str
    change: ChangeKind | None

    @property
    def figures(self) -> list[str]:
        """The lines below the verdict: examples, counterexamples, and in how many cells the verdict holds."""
        requirement, cells = self.requirement, self.requirement.cells
        alike = sum(cell.verdict is requirement.verdict for cell in cells)
        return [
            many(requirement.examples, "example"),
            *([many(len(requirement.cases), "counterexample")] if requirement.cases else []),
            *([f"in {alike} of {len(cells)} cells"] if 0 < alike < len(cells) else []),
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement: its matrix cell in each column, None where that run does not have it."""

    id: str
    title: str
    anchor: str
    parts: StatementParts
    upstream: list[str]
    otherwise: list[str]  # the columns whose statement of the requirement differs
    cells: list[MatrixCell | None]

    @property
    def verdicts(self) -> list[Verdict]:
        """The different verdicts of the row, worst first."""
        found = {cell.requirement.verdict for cell in self.cells if cell is not None}
        return [verdict for verdict in overview.WORST_FIRST if verdict in found]

    @property
    def kinds(self) -> str:
        """The CSS classes of its verdicts. The filter shows the row while one of them is selected."""
        return " ".join(map(verdict_class, self.verdicts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How the page was made. `headline`: its first words; "": they follow from the runs. `command`: that made it.

    `version`: its Coldproof; `file`: with the same data. `missing`: a sentence for each run that has no results.
    `complete`: whether the command came to its end.
    """

    headline: str = ""
    command: str = ""
    version: str = ""
    file: str = ""
    missing: tuple[str, ...] = ()
    complete: bool = True


_MADE = Made()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """All that the page shows: all columns, and all requirements by area.

    `changes`: from each run to the next, and `slower`: what takes longer than before; none without a series.
    """

    kind: Kind
    made: Made
    columns: list[Column]
    areas: list[Area[Row]]
    changes: list[Change]
    slower: list[Slowdown]

    @property
    def headline(self) -> str:
        """The page in one sentence. No verdict holds for several engines, so that it has one in a series only."""
        runs = f"{many(len(self.columns), 'run')} of {many(len(self.engines), 'engine')}, requirement by requirement"
        if not self.kind.series:
            return self.made.headline or runs
        found = ", ".join(f"{len(found)} {kind.value}" for kind, found in by_kind(self.changes))
        return f"{self.made.headline or conclusion(self.changes)} — {found or 'no change of a verdict'}"

    @property
    def engines(self) -> list[str]:
        """The different engines with their versions."""
        return list(dict.fromkeys(column.engine for column in self.columns if column.results.engine))

    @property
    def facts(self) -> list[tuple[str, list[str]]]:
        """The facts of the runs: for each fact its name and one value for each column."""
        verdicts = ("Verdicts", [column.counted for column in self.columns])
        return [verdicts, *run_facts.facts([column.results for column in self.columns])]

    @property
    def wide(self) -> bool:
        """Whether there are too many columns for a printed page."""
        return len(self.columns) > WIDE_MATRIX

    @property
    def verdicts(self) -> list[Verdict]:
        """The different verdicts of the matrix, worst first."""
        found = {verdict for part in self.areas for row in part.rows for verdict in row.verdicts}
        return [verdict for verdict in overview.WORST_FIRST if verdict in found]


def side_by_side(sources: Sequence[Source], kind: Kind, made: Made = _MADE) -> SideBySide:
    """Set the runs side by side: columns in the order given, requirements sorted by id."""
    runs = columns(sources)
    found = changes(runs) if kind.series else []
    views = [_views(run) for run in runs]
    marks = {(one.column.label, one.requirement): one.kind for one in reversed(found) if one.kind not in STILL}
    titles = area_titles(view.requirement for one in views for view in one.values())
    taken: set[str] = set()
    areas: dict[str, list[Row]] = {}
    for name in sorted({name for one in views for name in one}, key=_by_number):
        row = _row(name, unique(f"requirement-{slug(name).lower()}", taken), runs, views, marks)
        areas.setdefault(area(name), []).append(row)
    return SideBySide(
        kind=kind,
        made=made,
        columns=runs,
        areas=[Area(name, titles.get(name, ""), rows) for name, rows in areas.items()],
        changes=found if len(runs) == 2 else [one for one in found if one.kind not in STILL],
        slower=slowdowns(runs) if kind.series else [],
    )


def _views(column: Column) -> dict[str, RequirementView]:
    """Return a run's requirements by id; none for an invalid run."""
    if column.invalid:
        return {}
    return {view.requirement.id: view for view in reversed(requirement_views(column.results.requirements))}


def _row(
    name: str,
    anchor: str,
    runs: list[Column],
    views: list[dict[str, RequirementView]],
    marks: Mapping[tuple[str, str], ChangeKind],
) -> Row:
    here = [(run, one.get(name)) for run, one in zip(runs, views, strict=True)]
    asked = [(column, view.requirement) for column, view in here if view is not None]
    first = asked[0][1]
    return Row(
        id=name,
        title=first.title,
        anchor=anchor,
        parts=first.parts,
        upstream=list(dict.fromkeys(link for _, requirement in asked for link in requirement.upstream)),
        otherwise=[column.label for column, other in asked if other.parts.required != first.parts.required],
        cells=[
            None if view is None else _matrix_cell(column, view, marks.get((column.label, name)))
            for column, view in here
        ],
    )


def _matrix_cell(column: Column, view: RequirementView, change: ChangeKind | None) -> MatrixCell:
    requirement = view.requirement
    own = set(requirement.cases)
    return MatrixCell(
        column=column,
        requirement=requirement,
        link=f"{column.source.link}#{view.anchor}" if column.source.link else "",
        causes=causes([case for case in column.results.cases if case.id in own]),
        help=_help(requirement),
        change=change,
    )


def _help(requirement: RequirementResult) -> str:
    """Return what would help to get a conclusive verdict, from what the run recorded."""
    match requirement.verdict:
        case Verdict.UNSUPPORTED:
            lacking = sorted({name for cell in requirement.cells for name in cell.absent})
            what = f" that has: {'; '.join(lacking)}" if lacking else ""
            return f"another cell, engine build or adapter{what}"
        case Verdict.NOT_EXERCISED:
            missing = {name for cell in requirement.cells for name in cell.missing}
            never = [name for name in requirement.needed if not requirement.evidence.get(name) or name in missing]
            what = f" that makes this evidence more likely: {'; '.join(never)}" if never else ""
            return f"a larger budget, or a cell{what}"
        case Verdict.INCONCLUSIVE:
            return "settings with reproducible cold answers, or more tries"
        case Verdict.ERROR:
            return "a run without errors; the engine's log is in the report folder"
    return ""


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that orders numbers in ids by value: LORA-2 before LORA-10."""
    parts = re.split("([0-9]{1,9})", name)
    return [(place % 2 == 1, int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
