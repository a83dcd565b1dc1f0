"""The runs as columns of a page: a unique label and the column head of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coldproof.reports.format.text import unique
from coldproof.reports.schema.results import Results
from coldproof.reports.views import overview

_NAMED = 3  # cells in a heading; more are counted


@dataclass(frozen=True, slots=True)
class Source:
    """A run, the link from the page to its own report ("" if there is none), and a name for it."""

    results: Results
    link: str
    name: str


@dataclass(frozen=True, slots=True)
class Column:
    """One run. `label` is the engine, with enough details to be unique."""

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
        """The lines of the column head below the engine's name and version."""
        engine = self.results.engine
        reached = [f"{engine.adapter} adapter, {engine.worker} worker"] if engine else []
        return [*reached, cells_text(self.cells)]


def columns(sources: Sequence[Source]) -> list[Column]:
    """Return one column for each run, in the order given."""
    named = zip(labels(sources), sources, strict=True)
    return [
        Column(label, f"engine-{place}", source, cells_of(source.results))
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
    """Return a unique label for each run: engine and version, and details only where they are needed."""
    found = [_named(source) for source in sources]
    for more in _MORE:
        said = [more(source) for source in sources]
        apart = [len({word for other, word in zip(found, said, strict=True) if other == one}) > 1 for one in found]
        found = [(*one, word) if needed else one for one, word, needed in zip(found, said, apart, strict=True)]
    taken: set[str] = set()
    return [unique(f"{name} ({'; '.join(more)})" if more else name, taken) for name, *more in found]


def _named(source: Source) -> tuple[str, ...]:
    return (overview.engine_name(source.results),) if source.results.engine else ("no engine", source.name)


_MORE: tuple[Callable[[Source], str], ...] = (
    lambda source: f"{source.results.engine.adapter} adapter" if source.results.engine else "no adapter",
    lambda source: f"{source.results.engine.worker} worker" if source.results.engine else "no worker",
    lambda source: cells_text(cells_of(source.results)),
    lambda source: source.name,
)
