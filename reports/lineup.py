"""Several runs in, requirement x engine out: each square says what that run says of that requirement, and where.

Invariant: nothing is added up over engines, and a requirement that a run does not have is an empty square, never a
verdict. No verdict of a run whose detector failed its self-test is in any square.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reports import comparability, overview
from reports.causes import causes
from reports.columns import Column, Source, columns
from reports.likeness import Run
from reports.requirementview import ABOUT, WIDE, Area, RequirementView, area, requirement_views
from reports.schema import Cause, RequirementResult, Results, Verdict
from reports.statement import Told, told
from reports.text import many, slug, unique


@dataclass(frozen=True, slots=True)
class Square:
    """One requirement in one run. `link`: the requirement in that run's own report, "" where there is no link to it."""

    column: Column
    requirement: RequirementResult
    link: str
    causes: list[Cause]
    help: str  # what it would take to have a verdict that says more; "" where nothing is missing

    @property
    def figures(self) -> list[str]:
        """What stands under the verdict: how much was tried, what was found, and whether all cells say the same."""
        requirement, cells = self.requirement, self.requirement.cells
        alike = sum(cell.verdict is requirement.verdict for cell in cells)
        return [
            many(requirement.examples, "example"),
            *([many(len(requirement.cases), "counterexample")] if requirement.cases else []),
            *([f"in {alike} of {len(cells)} cells"] if 0 < alike < len(cells) else []),
        ]


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement: its square in each column, None where that run does not have it."""

    id: str
    title: str
    anchor: str
    told: Told
    upstream: list[str]
    otherwise: list[str]  # the columns in which it is stated in other words
    squares: list[Square | None]

    @property
    def verdicts(self) -> list[Verdict]:
        """Every verdict of the row once, worst first."""
        found = {square.requirement.verdict for square in self.squares if square is not None}
        return [verdict for verdict in overview.WORST_FIRST if verdict in found]


@dataclass(frozen=True, slots=True)
class Lineup:
    """All columns, and all requirements by area."""

    columns: list[Column]
    areas: list[Area[Row]]

    @property
    def headline(self) -> str:
        """What there is, without a verdict: no word holds for several engines."""
        runs, engines = len(self.columns), len(self.engines)
        return f"{many(runs, 'run')} of {many(engines, 'engine')}, requirement by requirement"

    @property
    def engines(self) -> list[str]:
        """Each engine and its version once."""
        return list(dict.fromkeys(column.engine for column in self.columns if column.results.engine))

    @property
    def facts(self) -> list[tuple[str, list[str]]]:
        """What each run was, fact by fact."""
        told_of = [comparability.described(column.results) for column in self.columns]
        return [(name, [facts[name] for facts in told_of]) for name in told_of[0]]

    @property
    def runs(self) -> list[Run]:
        """The runs as sentences call them."""
        return [Run(label=column.label, results=column.results) for column in self.columns]

    @property
    def wide(self) -> bool:
        """Whether there are more columns than a sheet of paper has room for."""
        return len(self.columns) > WIDE

    @property
    def verdicts(self) -> list[Verdict]:
        """Every verdict that some square has, worst first."""
        found = {verdict for part in self.areas for row in part.rows for verdict in row.verdicts}
        return [verdict for verdict in overview.WORST_FIRST if verdict in found]


def lineup(sources: Sequence[Source]) -> Lineup:
    """The columns in the order given, the requirements by id."""
    runs = columns(sources)
    views = [_views(run) for run in runs]
    taken: set[str] = set()
    areas: dict[str, list[Row]] = {}
    for name in sorted({name for one in views for name in one}, key=_by_number):
        row = _row(name, unique(f"requirement-{slug(name).lower()}", taken), runs, views)
        areas.setdefault(area(name), []).append(row)
    return Lineup(runs, [Area(name, ABOUT.get(name, ""), rows) for name, rows in areas.items()])


def _views(column: Column) -> dict[str, RequirementView]:
    """A run's requirements by id, the first of each; none where no verdict counts."""
    if column.invalid:
        return {}
    return {view.requirement.id: view for view in reversed(requirement_views(column.results.requirements))}


def _row(name: str, anchor: str, runs: list[Column], views: list[dict[str, RequirementView]]) -> Row:
    here = [(run, one.get(name)) for run, one in zip(runs, views, strict=True)]
    asked = [(column, view.requirement) for column, view in here if view is not None]
    first = asked[0][1]
    return Row(
        id=name,
        title=first.title,
        anchor=anchor,
        told=told(first.statement),
        upstream=list(dict.fromkeys(link for _, requirement in asked for link in requirement.upstream)),
        otherwise=[
            column.label for column, other in asked if told(other.statement).states != told(first.statement).states
        ],
        squares=[None if view is None else _square(column, view) for column, view in here],
    )


def _square(column: Column, view: RequirementView) -> Square:
    requirement = view.requirement
    own = set(requirement.cases)
    return Square(
        column=column,
        requirement=requirement,
        link=f"{column.source.link}#{view.anchor}" if column.source.link else "",
        causes=causes([case for case in column.results.cases if case.id in own]),
        help=_help(requirement, column.results),
    )


def _help(requirement: RequirementResult, results: Results) -> str:
    """What would help, as far as the run itself tells."""
    match requirement.verdict:
        case Verdict.UNSUPPORTED:
            lacking = _lacking(requirement, results)
            what = f" that has: {'; '.join(lacking)}" if lacking else ""
            return f"another cell, build of the engine or adapter of Coldproof{what}"
        case Verdict.NOT_EXERCISED:
            never = [name for name in requirement.needed if _never(name, requirement)]
            what = f" in which these are likelier: {'; '.join(never)}" if never else ""
            return f"a larger budget, or a cell{what}"
        case Verdict.INCONCLUSIVE:
            return "settings under which cold answers repeat exactly, or more tries"
        case Verdict.ERROR:
            return "a run that does not break: the engine's log is in its report folder"
    return ""


def _lacking(requirement: RequirementResult, results: Results) -> list[str]:
    """The capabilities that the reason names and the engine is not known to have."""
    capabilities = results.engine.capabilities if results.engine else {}
    said = " ".join([requirement.reason, *(cell.reason for cell in requirement.cells)])
    absent = (name for name, facts in sorted(capabilities.items()) if facts.get("present") is not True)
    return [name for name in absent if f"{name}: " in said]


def _never(name: str, requirement: RequirementResult) -> bool:
    """Whether some evidence was not seen at all, or not in the cell that the reason is of."""
    return not requirement.evidence.get(name) or name in requirement.reason


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """LORA-2 before LORA-10."""
    parts = re.split("([0-9]{1,9})", name)
    return [(place % 2 == 1, int(part) if place % 2 else 0, part) for place, part in enumerate(parts)]
