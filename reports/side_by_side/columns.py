"""The runs as columns of a page: a unique label, the column head and the links of each.

A command makes a source of each run that it shows; all else on the page follows from the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results
from coldproof.reports.format.text import file_link, unique
from coldproof.reports.views import overview

_NAMED = 3  # cells in a heading; more are counted


@dataclass(frozen=True, slots=True)
class Explanation:
    """The known cause of a counterexample, and its public report."""

    cause: str
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A run, and what its command knows of it.

    `link`: from the page to its own report; "" if there is none. `name`: of the run. `label`: of its column; "": the
    engine, with what sets it apart. `cases`: from the page to the folder of its cases; "" if there is none.
    `explained`: by case, its known cause. `said`: further sentences. `files`: words and link of each further file.
    `command`: checks the run again.
    """

    results: Results
    link: str
    name: str
    label: str = ""
    cases: str = ""
    explained: Mapping[str, Explanation] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    command: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One run. `label` is unique on the page."""

    label: str
    anchor: str
    source: Source
    cells: list[str]

    @property
    def results(self) -> Results:
        """The results of the run."""
        return self.source.results

    @property
    def engine(self) -> str:
        """The engine and its version; not unique."""
        return _named(self.source)[0]

    @property
    def head(self) -> str:
        """The first line of the column head."""
        return self.source.label or self.engine

    @property
    def invalid(self) -> bool:
        """Whether the run is invalid, so that none of its verdicts counts."""
        return bool(overview.failed_selftests(self.results))

    @property
    def marks(self) -> list[str]:
        """Marks such as FAULT INJECTED that qualify all verdicts of the run."""
        return overview.banners(self.results)

    @property
    def absent(self) -> str:
        """The text of an empty matrix cell in this column."""
        return "the run is invalid" if self.invalid else "not in this run"

    @property
    def counted(self) -> str:
        """The number of requirements with each verdict, as text."""
        if self.invalid:
            return overview.invalid_sentence(self.results)
        found = [f"{count} {verdict.value.lower()}" for verdict, count in overview.counts(self.results) if count]
        return ", ".join(found) or "no requirement was tested"

    @property
    def headed(self) -> list[str]:
        """The lines of the column head below its first line."""
        engine = self.results.engine
        named = [self.engine] if self.source.label and self.engine not in self.source.label else []
        reached = [f"{engine.adapter} adapter, {engine.worker} worker"] if engine else []
        return [*named, *reached, cells_text(self.cells)]

    def file_of(self, case: Case) -> str:
        """Return the link to the file of a case; "" if there is none."""
        return f"{self.source.cases}/{file_link(f'{case.id}.json')}" if self.source.cases else ""


def columns(sources: Sequence[Source]) -> list[Column]:
    """Return one column for each run, in the order given."""
    named = zip(labels(sources), sources, strict=True)
    return [
        Column(label, f"run-{place}", source, cells_of(source.results))
        for place, (label, source) in enumerate(named, start=1)
    ]


def cells_of(results: Results) -> list[str]:
    """Return every cell that the run has a requirement in, in the run's order."""
    return list(dict.fromkeys(cell.cell for requirement in results.requirements for cell in requirement.cells))


def cells_text(cells: Sequence[str]) -> str:
    """Return the names of the cells, or their number if there are many."""
    if len(cells) > _NAMED:
        return f"{len(cells)} cells"
    return f"{'cell' if len(cells) == 1 else 'cells'} {', '.join(cells)}" if cells else "no cell"


def labels(sources: Sequence[Source]) -> list[str]:
    """Return a unique label for each run: its own, or engine and version, with details only where they are needed."""
    found = [(source.label,) if source.label else _named(source) for source in sources]
    for more in _MORE:
        said = [more(source) for source in sources]
        apart = [len({word for other, word in zip(found, said, strict=True) if other == one}) > 1 for one in found]
        found = [(*one, word) if needed else one for one, word, needed in zip(found, said, apart, strict=True)]
    taken: set[str] = set()
    return [unique(f"{name} ({'; '.join(more)})" if more else name, taken) for name, *more in found]


def _named(source: Source) -> tuple[str, ...]:
    """Return the engine and its version, without the label that a command gives."""
    return (overview.engine_name(source.results),) if source.results.engine else ("no engine", source.name)


_MORE: tuple[Callable[[Source], str], ...] = (
    lambda source: f"{source.results.engine.adapter} adapter" if source.results.engine else "no adapter",
    lambda source: f"{source.results.engine.worker} worker" if source.results.engine else "no worker",
    lambda source: cells_text(cells_of(source.results)),
    lambda source: source.name,
)
