"""Views of the requirements: one by one with anchors for their cells, and as a matrix of requirements and cells.

The matrix and the sections use the same view objects, so that every field of the matrix links to its evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coldproof.harness.schema.results import CellResult, LayerVerdict, RequirementResult
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import slug, unique

MAX_FIGURES = 3  # evidence figures in one row of the table
WIDE_MATRIX = 7  # more cells than this do not fit side by side, on a screen or on paper
LAYER_ORDER = ("exact", "model", "server")  # others come last
COLUMN_ABOUT = {
    "cell": "A cell is one engine configuration.",
    "layer": "A layer is one way to run the requirements; the results by cell are under each requirement.",
}

AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True, slots=True)
class CellView:
    """One requirement in one cell, and its anchor on the page."""

    row: CellResult
    anchor: str


@dataclass(frozen=True, slots=True)
class FieldView:
    """One requirement in one column of the matrix, and the anchor of its evidence on the page."""

    row: CellResult | LayerVerdict | RequirementResult
    anchor: str


@dataclass(frozen=True, slots=True)
class RequirementView:
    """A requirement with its anchor, its cells and its evidence."""

    requirement: RequirementResult
    anchor: str
    cells: list[CellView]
    needed: dict[str, float]  # the evidence that the requirement needs to be exercised
    further: dict[str, float]  # all other evidence


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the matrix: a requirement and its result in each cell or layer, None where it did not run."""

    view: RequirementView
    cells: list[FieldView | None]

    @property
    def id(self) -> str:
        """Return the requirement's id."""
        return self.view.requirement.id

    @property
    def title(self) -> str:
        """Return the requirement's title."""
        return self.view.requirement.title

    @property
    def anchor(self) -> str:
        """Return the anchor of the requirement's section."""
        return self.view.anchor

    @property
    def kinds(self) -> str:
        """Return the CSS class of the verdict."""
        return verdict_class(self.view.requirement.verdict)

    def shown(self, overall: bool) -> list[FieldView | None]:
        """Return the fields of the row. `overall`: the first one has the verdict over all columns."""
        return [*([FieldView(self.view.requirement, self.view.anchor)] if overall else []), *self.cells]


@dataclass(frozen=True, slots=True)
class Area(Generic[AnyRow]):
    """The rows of the requirements in one area."""

    name: str
    about: str
    rows: list[AnyRow]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Requirements by area and cell, or layer in a run of several. `columns`: which of the two.

    `overall`: whether the table needs a column for the verdicts over all of them.
    """

    columns: str
    cells: list[tuple[str, str]]  # name and anchor
    areas: list[Area[Row]]
    overall: bool
    wide: bool


def requirement_views(requirements: Sequence[RequirementResult]) -> list[RequirementView]:
    """Return the views in the order of the results. Anchors are unique for all ids and cell names."""
    taken: set[str] = set()
    return [_view(requirement, taken) for requirement in requirements]


def matrix(views: Sequence[RequirementView]) -> Matrix:
    """Return the matrix of all requirements and cells, or layers if the run has several.

    Cells in which more requirements ran come first; layers keep their order.
    """
    layered = len({one.layer for view in views for one in view.requirement.layers}) > 1
    fields = [
        by_layer(view) if layered else {cell.row.label: FieldView(cell.row, cell.anchor) for cell in view.cells}
        for view in views
    ]
    counted = Counter(name for named in fields for name in named)
    names = (
        sorted(counted, key=(*LAYER_ORDER, *counted).index) if layered else [name for name, _ in counted.most_common()]
    )
    taken: set[str] = set()
    areas: dict[str, list[Row]] = {}
    for view, named in zip(views, fields, strict=True):
        areas.setdefault(area(view.requirement.id), []).append(Row(view, [named.get(name) for name in names]))
    titles = area_titles(view.requirement for view in views)
    one_cell_each = all([cell.row.verdict for cell in view.cells] == [view.requirement.verdict] for view in views)
    return Matrix(
        columns="layer" if layered else "cell",
        cells=[(name, unique(f"cell-{slug(name)}", taken)) for name in names],
        areas=[Area(name, titles.get(name, ""), rows) for name, rows in areas.items()],
        overall=len(names) != 1 or not one_cell_each,
        wide=len(names) > WIDE_MATRIX,
    )


def by_layer(view: RequirementView) -> dict[str, FieldView]:
    """Return the requirement's verdict in each layer, with the anchor of the first cell there."""
    anchors = {cell.row.layer: cell.anchor for cell in reversed(view.cells)}
    return {one.layer: FieldView(one, anchors[one.layer]) for one in view.requirement.layers}


def area(requirement_id: str) -> str:
    """Return the area of a requirement: the part of its id before the dash."""
    return requirement_id.partition("-")[0]


def area_titles(requirements: Iterable[RequirementResult]) -> dict[str, str]:
    """Return the titles of the areas that have one."""
    return {area(one.id): one.area for one in requirements if one.area}


def areas(requirement_ids: Sequence[str]) -> str:
    """Return the areas of the requirements as the values that the filter uses, separated by spaces."""
    return " ".join(dict.fromkeys(slug(area(one)).lower() for one in requirement_ids))


def _view(requirement: RequirementResult, taken: set[str]) -> RequirementView:
    anchor = unique(f"requirement-{slug(requirement.id).lower()}", taken)
    needed = {name: requirement.evidence[name] for name in requirement.needed if name in requirement.evidence}
    return RequirementView(
        requirement=requirement,
        anchor=anchor,
        cells=[CellView(row, unique(f"{anchor}-in-{slug(row.label)}", taken)) for row in requirement.cells],
        needed=needed,
        further={name: value for name, value in requirement.evidence.items() if name not in needed},
    )


def main_figures(requirement: RequirementResult) -> list[tuple[str, float]]:
    """Return the evidence for the requirement's row: what it needs to be exercised, else the first nonzero values.

    For NOT EXERCISED, values of zero come first, because they are the reason.
    """
    needed = [(name, requirement.evidence[name]) for name in requirement.needed if name in requirement.evidence]
    if not needed:
        needed = [figure for figure in sorted(requirement.evidence.items()) if figure[1]][:MAX_FIGURES]
    if requirement.verdict is Verdict.NOT_EXERCISED:
        needed.sort(key=lambda figure: figure[1] != 0)
    return needed


def cell_figures(cell: CellResult, requirement: RequirementResult) -> list[tuple[str, float]]:
    """Return the evidence for the row of a cell: what the requirement needs; results.json has all counters."""
    needed = [(name, cell.evidence[name]) for name in requirement.needed if name in cell.evidence]
    return needed or [figure for figure in sorted(cell.evidence.items()) if figure[1]][:MAX_FIGURES]


@dataclass(frozen=True, slots=True)
class Failures:
    """What counts as a failure of some requirement, each once, with the ids of these requirements."""

    of: dict[str, list[str]]

    def number(self, words: str) -> int:
        """Return the number of an entry, from 1."""
        return list(self.of).index(words) + 1


def failures(requirements: Iterable[RequirementResult]) -> Failures:
    """Return what counts as a failure of these requirements, in their order."""
    found: dict[str, list[str]] = {}
    for one in requirements:
        for words in one.fails_on:
            found.setdefault(words, []).append(one.id)
    return Failures(found)


def verdict_class(verdict: Verdict) -> str:
    """Return the CSS class of a verdict."""
    return f"v-{verdict.name.lower().replace('_', '-')}"
