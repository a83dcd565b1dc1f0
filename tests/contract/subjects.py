"""The engines that the contract is tested on: all that this Python can start, and always the scripted one.

`--engine NAME` selects one engine; `--engine-url` selects an engine that is already running.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from coldproof.adapters import registry
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec, StartOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import AdapterFiles, generate_adapter, tiny_model
from coldproof.harness.options import UsageError
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.session.selftest.selftest import write_versions

# Traits of the cells that stand for an engine: adapters, a second tier, images.
REPRESENTED = (
    (CellTrait.ADAPTERS, CellTrait.ADAPTER_CHOICE),
    (CellTrait.SECOND_TIER, "saved states"),
    ("images",),
)
CACHED = generated_files()
SEEDS = {"A": (1, 8), "B": (2, 8), "C": (3, 16)}  # content -> (seed, rank)
UNKNOWN = (9, 8)  # a content that no engine knows from its start


class StartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an engine: its cache on or off, with adapters or without, and the path of its log."""

    caching: bool = True
    adapters: bool = True
    log: Path = Path()


def generated_weights(_folder: Path) -> tuple[Path, Path]:
    """Return the folders of the generated model's weights, and of other weights of the same configuration."""
    return tiny_model(CACHED).resolve(), tiny_model(CACHED, seed=1).resolve()


def scripted_weights(folder: Path) -> tuple[Path, Path]:
    """Return two folders of weights for the scripted engine, of a few bytes each."""
    start, other = write_versions(folder).values()
    return start.folder, other.folder


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that the contract is tested on.

    `spare`: starting more of them is cheap, one without its cache and one without adapters. `weights`: returns the
    folders of the weights of the start and of others, and writes them if need be.
    """

    name: str
    start: Callable[[StartSettings], Engine]
    spare: bool = True
    weights: Callable[[Path], tuple[Path, Path]] = generated_weights


class SubjectEngines:
    """The engines of one subject while its tests run. A new one is started where a test has ended the last."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject, self.folder = subject, folder
        self.engines: dict[StartSettings, CheckedEngine] = {}
        self.starts = 0

    def engine(self, settings: StartSettings, *, or_ended: bool = False) -> CheckedEngine:
        """Return the engine with these settings; a subject without spares has one engine for all. `dead_too`: also
        if it has ended.
        """
        settings = settings if self.subject.spare else StartSettings()
        found = self.engines.get(settings)
        if found is None or not (found.alive() or or_ended):
            self.starts += 1
            log = self.folder / f"engine-{self.starts}.log"
            found = CheckedEngine(self.subject.start(msgspec.structs.replace(settings, log=log)))
            self.engines[settings] = found
        return found

    def stop(self) -> None:
        """Stop all engines."""
        for engine in self.engines.values():
            engine.stop()


@functools.cache  # pytest runs the tests of equal parameters together
def subjects(engine: str | None, url: str | None) -> tuple[Subject, ...]:
    """Return the engines to test. Raises UsageError if a requested engine is not installed."""
    if url is not None:
        return (attached(engine or "endpoint", url),)
    here = [scripted(), *(one for spec in ENGINES.values() if spec.installed for one in subjects_of(spec))]
    chosen = [one for one in here if engine is None or one.name.split(":")[0] == engine]
    if not chosen:
        package = ENGINES[engine].package if engine in ENGINES else None
        hint = f": install {package}" if package else f": choose one of {', '.join(sorted({s.name for s in here}))}"
        raise UsageError(f"no engine {engine!r} to try the contract on{hint}")
    return tuple(chosen)


def scripted() -> Subject:
    """Return the scripted engine."""
    return Subject(
        name="scripted", start=lambda settings: ScriptedEngine(caching=settings.caching), weights=scripted_weights
    )


def subjects_of(spec: EngineSpec) -> Iterator[Subject]:
    """Yield an engine as the harness would start it, for a few of its cells and once with each worker of its own."""
    if spec.start is None:
        return
    cells = [cell for cell in spec.cells if cell.fits(spec.name, MODEL) and cell.installed]
    for cell in representative_cells(cells) if spec.quick else cells[:1]:
        name = spec.name if cell is spec.cells[0] else f"{spec.name}:{cell.name}"
        yield Subject(name=name, start=starter(spec.start, cell, MODEL), spare=spec.quick)
    for worker in spec.workers[1:] if spec.quick else ():
        yield Subject(name=f"{spec.name}:{worker}", start=starter(spec.start, spec.cells[0], worker))


def representative_cells(cells: list[Cell]) -> list[Cell]:
    """Return the first cell of an engine, the first with adapters, one with a second tier, and one with images."""
    usual = [cell for cell in cells if cell.model is ModelLayers.FULL]  # they are started with the usual model
    found = [next((cell for cell in usual if cell.suits(traits)), cells[0]) for traits in REPRESENTED]
    return list({cell.name: cell for cell in (cells[0], *found)}.values())


def starter(start: Callable[[StartOptions], Engine], cell: Cell, worker: str) -> Callable[[StartSettings], Engine]:
    """Return a function that starts an engine with given settings in a cell."""
    return lambda settings: start(
        StartOptions(
            model=str(tiny_model(CACHED)),
            adapters=tuple(files.folder for files in contents().values()) if settings.adapters else (),
            cell=cell,
            caching=settings.caching,
            arguments=cell.arguments,
            log=settings.log,
            on_process=lambda _process: None,
            worker=worker,
        )
    )


def attached(name: str, url: str) -> Subject:
    """Return an engine that runs already and continues after the tests. Its adapters are those that fit our model."""
    kind = registry.attached(name, url)
    if kind is None or kind.attach is None:
        raise UsageError(f"--engine {name} is started here: leave out --engine-url")
    attach, path = kind.attach, str(contents()["A"].folder.resolve())
    return Subject(name=name, start=lambda _wanted: attach(url, adapter_for=lambda _root: path), spare=False)


def contents() -> dict[str, AdapterFiles]:
    """Return the adapters that an engine knows from its start."""
    return {name: generated(seed, rank) for name, (seed, rank) in SEEDS.items()}


def unknown_adapter() -> AdapterFiles:
    """Return an adapter that fits the model and that the engine does not know from its start."""
    return generated(*UNKNOWN)


def generated(seed: int, rank: int) -> AdapterFiles:
    """Return a generated adapter for the tiny model."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return generate_adapter(CACHED, config, seed=seed, rank=rank)
