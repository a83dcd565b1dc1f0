"""Requirements arranged for reading: one by one with an anchor for each of their cells, and as a matrix of both.

Pure. A requirement of the matrix is the same view as its section's, so that every square leads to its evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from reports.schema import CellResult, Distribution, RequirementResult
from reports.statement import Told, told
from reports.text import slug, unique

WIDE = 7  # more cells than this do not fit beside each other, on a screen or on paper

ABOUT = {
    "CHAT": "shared preludes and next turns",
    "CTRL": "resets and aborts",
    "EVENT": "published KV events",
    "GROUND": "the engine without its cache",
    "GROUP": "several groups of KV blocks",
    "LORA": "adapters that change behind a name",
    "MIXED": "everything at once",
    "PREEMPT": "preemption",
    "PRESS": "a pool too small",
    "REUSE": "hits that are owed",
    "SALT": "salts",
    "SURFACE": "whatever else a request may ask for",
    "TIER": "a second KV tier",
}

AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True, slots=True)
class CellView:
    """One requirement in one cell, and where on the page it is."""

    row: CellResult
    anchor: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a plot; `share`: its length, in hundredths of the longest."""

    label: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class Plot:
    """One distribution, to be drawn."""

    name: str
    unit: str
    bars: list[Bar]


@dataclass(frozen=True, slots=True)
class RequirementView:
    """A requirement, where it is on the page, its statement in parts, its cells and its plots."""

    requirement: RequirementResult
    anchor: str
    area: str
    told: Told
    cells: list[CellView]
    plots: list[Plot]
    needed: dict[str, float]  # the evidence that it cannot do without, and the rest
    further: dict[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the matrix: a requirement and its square in each cell, None where it did not run there."""

    view: RequirementView
    squares: list[CellView | None]


@dataclass(frozen=True, slots=True)
class Area(Generic[AnyRow]):
    """The requirements whose ids begin alike, in the rows of some table."""

    name: str
    about: str
    rows: list[AnyRow]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Requirements by area against cells. `overall`: whether the requirements' own verdicts need a column."""

    cells: list[tuple[str, str]]  # name and anchor
    areas: list[Area[Row]]
    overall: bool
    wide: bool


def requirement_views(requirements: Sequence[RequirementResult]) -> list[RequirementView]:
    """In the results' order. Anchors are unique whatever the ids and the cells are called."""
    taken: set[str] = set()
    return [_view(requirement, taken) for requirement in requirements]


def matrix(views: Sequence[RequirementView]) -> Matrix:
    """All requirements against all cells; the cell that most requirements ran in comes first."""
    counted = Counter(cell.row.cell for view in views for cell in view.cells)
    cells = [name for name, _ in counted.most_common()]
    taken: set[str] = set()
    areas: dict[str, list[Row]] = {}
    for view in views:
        here = {cell.row.cell: cell for cell in view.cells}
        areas.setdefault(view.area, []).append(Row(view, [here.get(name) for name in cells]))
    told_by_cell = all([cell.row.verdict for cell in view.cells] == [view.requirement.verdict] for view in views)
    return Matrix(
        cells=[(name, unique(f"cell-{slug(name)}", taken)) for name in cells],
        areas=[Area(name, ABOUT.get(name, ""), rows) for name, rows in areas.items()],
        overall=len(cells) != 1 or not told_by_cell,
        wide=len(cells) > WIDE,
    )


def area(requirement_id: str) -> str:
    """What requirements of one kind have in common: the part of the id before the dash."""
    return requirement_id.partition("-")[0]


def areas(requirement_ids: Sequence[str]) -> str:
    """The areas of some requirements as the filter knows them."""
    return " ".join(dict.fromkeys(slug(area(one)).lower() for one in requirement_ids))


def plots(distributions: Sequence[Distribution]) -> list[Plot]:
    """Bars as long as they are many, the longest of each plot over its whole width."""
    return [Plot(one.name, one.unit, _bars(one)) for one in distributions]


def _bars(distribution: Distribution) -> list[Bar]:
    most = max((part.count for part in distribution.bins), default=0)
    return [Bar(part.label, part.count, round(100 * part.count / max(most, 1), 1)) for part in distribution.bins]


def _view(requirement: RequirementResult, taken: set[str]) -> RequirementView:
    anchor = unique(f"requirement-{slug(requirement.id).lower()}", taken)
    needed = {name: requirement.evidence[name] for name in requirement.needed if name in requirement.evidence}
    return RequirementView(
        requirement=requirement,
        anchor=anchor,
        area=area(requirement.id),
        told=told(requirement.statement),
        cells=[CellView(row, unique(f"{anchor}-in-{slug(row.cell)}", taken)) for row in requirement.cells],
        plots=plots(requirement.distributions),
        needed=needed,
        further={name: value for name, value in requirement.evidence.items() if name not in needed},
    )
