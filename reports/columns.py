"""Runs as the columns of a page: what each is called, so that no two are called alike, and what stands in its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports import overview
from reports.schema import Results
from reports.text import unique

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
    def marks(self) -> list[str]:
        """What has to be known before any of its verdicts is read."""
        return overview.marks(self.results)

    @property
    def absent(self) -> str:
        """Why a square of it is empty."""
        return "the run is invalid" if self.invalid else "not in this run"

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


def columns(sources: Sequence[Source]) -> list[Column]:
    """One for each run, in the order given."""
    named = zip(labels(sources), sources, strict=True)
    return [
        Column(label, f"engine-{place}", source, cells_of(source.results))
        for place, (label, source) in enumerate(named, start=1)
    ]


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
