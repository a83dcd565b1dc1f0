"""Several runs in, requirement x engine out: each square says what that run says of that requirement, and where.

Invariant: nothing is added up over engines, and a requirement that a run does not have is an empty square, never a
verdict. No verdict of a run whose detector failed its self-test is in any square.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports import comparability, overview
from reports.causes import causes
from reports.likeness import Run
from reports.requirementview import ABOUT, WIDE, RequirementView, area, requirement_views
from reports.schema import Cause, RequirementResult, Results, Verdict
from reports.statement import Told, told
from reports.text import many, slug, unique

_NAMED = 3  # cells in a heading; more are counted


@dataclass(frozen=True, slots=True)
class Source:
    """A run, where its own report is from the page's point of view ("" where no link would hold), and a name for it."""

    results: Results
    link: str
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    """One run. `label`: the engine, with as much beside it as tells it from the others."""

    label: str
    anchor: str
    source: Source
    cells: list[str]

    @property
    def results(self) -> Results:
        """What the run left."""
        return self.source.results

    @property
    def engine(self) -> str:
        """Engine and version, whichever other runs there are."""
        return _named(self.source)[0]

    @property
    def invalid(self) -> bool:
        """Whether none of its verdicts counts."""
        return bool(overview.missed(self.results))

    @property
    def counted(self) -> str:
        """How many requirements have which verdict, in words."""
        if self.invalid:
            return overview.invalid_sentence(self.results)
        found = [f"{count} {verdict.value.lower()}" for verdict, count in overview.counts(self.results) if count]
        return ", ".join(found) or "no requirement was tested"

    @property
    def headed(self) -> list[str]:
        """What stands in the column's head under the engine's name and version."""
        engine = self.results.engine
        reached = [f"{engine.adapter} adapter, {engine.worker} worker"] if engine else []
        return [*reached, cells_in_words(self.cells)]


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
            *([f"in {alike} of {len(cells)} cells"] if alike != len(cells) else []),
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
class Area:
    """The requirements whose ids begin alike."""

    name: str
    about: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Lineup:
    """All columns, and all requirements by area."""

    columns: list[Column]
    areas: list[Area]

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
    columns = [
        Column(label, f"engine-{place}", source, cells_of(source.results))
        for place, (label, source) in enumerate(zip(labels(sources), sources, strict=True), start=1)
    ]
    views = [_views(column) for column in columns]
    taken: set[str] = set()
    areas: dict[str, list[Row]] = {}
    for name in sorted({name for one in views for name in one}, key=_by_number):
        row = _row(name, unique(f"requirement-{slug(name).lower()}", taken), columns, views)
        areas.setdefault(area(name), []).append(row)
    return Lineup(columns, [Area(name, ABOUT.get(name, ""), rows) for name, rows in areas.items()])


def cells_of(results: Results) -> list[str]:
    """Every cell that the run has a requirement in, in the run's order."""
    return list(dict.fromkeys(cell.cell for requirement in results.requirements for cell in requirement.cells))


def cells_in_words(cells: Sequence[str]) -> str:
    """The cells by name, or how many there are."""
    if len(cells) > _NAMED:
        return f"{len(cells)} cells"
    return f"{'cell' if len(cells) == 1 else 'cells'} {', '.join(cells)}" if cells else "no cell"


def labels(sources: Sequence[Source]) -> list[str]:
    """Each engine and its version, and as much of the rest as it takes to tell it from the others."""
    found = [_named(source) for source in sources]
    for more in _MORE:
        said = [more(source) for source in sources]
        apart = [len({word for other, word in zip(found, said, strict=True) if other == one}) > 1 for one in found]
        found = [(*one, word) if needed else one for one, word, needed in zip(found, said, apart, strict=True)]
    taken: set[str] = set()
    return [unique(f"{name} ({'; '.join(more)})" if more else name, taken) for name, *more in found]


def _named(source: Source) -> tuple[str, ...]:
    return (overview.engine_name(source.results),) if source.results.engine else ("no engine", source.name)


def _adapter(source: Source) -> str:
    return f"{source.results.engine.adapter} adapter" if source.results.engine else "no adapter"


def _worker(source: Source) -> str:
    return f"{source.results.engine.worker} worker" if source.results.engine else "no worker"


_MORE: tuple[Callable[[Source], str], ...] = (
    _adapter,
    _worker,
    lambda source: cells_in_words(cells_of(source.results)),
    lambda source: source.name,
)


def _views(column: Column) -> dict[str, RequirementView]:
    """A run's requirements by id, the first of each; none where no verdict counts."""
    if column.invalid:
        return {}
    return {view.requirement.id: view for view in reversed(requirement_views(column.results.requirements))}


def _row(name: str, anchor: str, columns: list[Column], views: list[dict[str, RequirementView]]) -> Row:
    here = [(column, one.get(name)) for column, one in zip(columns, views, strict=True)]
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
            never = [name for name in requirement.needed if not requirement.evidence.get(name)]
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


def _by_number(name: str) -> list[tuple[bool, int, str]]:
    """LORA-2 before LORA-10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split("([0-9]{1,9})", name)]
