"""The engines that the contract is tried on: all that this Python can start, and always the scripted one.

`--engine NAME` leaves that one alone; with `--engine-url` an engine that its owner started.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from coldproof.adapters import registry
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

CACHED = generated_files()
SEEDS = {"A": (1, 8), "B": (2, 8), "C": (3, 16)}  # content -> (seed, rank)
STRANGER = (9, 8)  # a content that no engine is told of at its start


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An engine to start: its cache on or off, told of adapters or of none, its log there."""

    caching: bool = True
    adapters: bool = True
    log: Path = Path()


def generated_weights(_folder: Path) -> tuple[Path, Path]:
    """The folders of the weights of the generated model, and of others of the same configuration."""
    return tiny_model(CACHED).resolve(), tiny_model(CACHED, seed=1).resolve()


def scripted_weights(folder: Path) -> tuple[Path, Path]:
    """The same for the scripted engine, of a few bytes each."""
    start, other = write_versions(folder).values()
    return start.folder, other.folder


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """An engine under contract. `spare`: more of it cost little: one without its cache, one without adapters.

    `weights`: writes weights to a folder if need be, and returns where those of the start and others are.
    """

    name: str
    start: Callable[[Wanted], Engine]
    spare: bool = True
    weights: Callable[[Path], tuple[Path, Path]] = generated_weights


class Held:
    """The engines of one subject while its tests run: a new one where a test has ended the last."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject, self.folder = subject, folder
        self.engines: dict[Wanted, CheckedEngine] = {}
        self.starts = 0

    def engine(self, wanted: Wanted, *, dead_too: bool = False) -> CheckedEngine:
        """The one that is wanted; of a subject without spares there is one engine for all. `dead_too`: or what is left
        of it."""
        wanted = wanted if self.subject.spare else Wanted()
        held = self.engines.get(wanted)
        if held is None or not (held.alive() or dead_too):
            self.starts += 1
            log = self.folder / f"engine-{self.starts}.log"
            held = CheckedEngine(self.subject.start(msgspec.structs.replace(wanted, log=log)))
            self.engines[wanted] = held
        return held

    def stop(self) -> None:
        """End all."""
        for engine in self.engines.values():
            engine.stop()


@functools.cache  # pytest runs the tests of equal parameters together
def subjects(engine: str | None, url: str | None) -> tuple[Subject, ...]:
    """What to try. Raises UsageError where what was asked for is not here."""
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
    """The scripted engine."""
    return Subject(
        name="scripted", start=lambda wanted: ScriptedEngine(caching=wanted.caching), weights=scripted_weights
    )


def subjects_of(spec: EngineSpec) -> Iterator[Subject]:
    """An engine as the harness would start it for a few of its cells, and once with each worker of its own."""
    if spec.start is None:
        return
    cells = [cell for cell in spec.cells if cell.fits(spec.name, MODEL) and cell.installed]
    for cell in telling(cells) if spec.quick else cells[:1]:
        name = spec.name if cell is spec.cells[0] else f"{spec.name}:{cell.name}"
        yield Subject(name=name, start=started(spec.start, cell, MODEL), spare=spec.quick)
    for worker in spec.workers[1:] if spec.quick else ():
        yield Subject(name=f"{spec.name}:{worker}", start=started(spec.start, spec.cells[0], worker))


def telling(cells: list[Cell]) -> list[Cell]:
    """The first of an engine's cells, the first that has adapters, one with a second tier, and one with images."""
    usual = [cell for cell in cells if cell.model is ModelLayers.FULL]  # they are started with the usual model
    found = [next((cell for cell in usual if cell.covers(one)), cells[0]) for one in ("LORA-4", "TIER-1", "MM-1")]
    return list({cell.name: cell for cell in (cells[0], *found)}.values())


def started(start: Callable[[StartOptions], Engine], cell: Cell, worker: str) -> Callable[[Wanted], Engine]:
    """How to start what is wanted in a cell."""
    return lambda wanted: start(
        StartOptions(
            model=str(tiny_model(CACHED)),
            adapters=tuple(files.folder for files in contents().values()) if wanted.adapters else (),
            cell=cell,
            caching=wanted.caching,
            arguments=cell.arguments,
            log=wanted.log,
            on_process=lambda _process: None,
            worker=worker,
        )
    )


def attached(name: str, url: str) -> Subject:
    """An engine that runs already, and goes on when the tests are over. Its adapters are those that fit our model."""
    kind = registry.attached(name, url)
    if kind is None or kind.attach is None:
        raise UsageError(f"--engine {name} is started here: leave out --engine-url")
    attach, path = kind.attach, str(contents()["A"].folder.resolve())
    return Subject(name=name, start=lambda _wanted: attach(url, adapter_for=lambda _root: path), spare=False)


def contents() -> dict[str, AdapterFiles]:
    """The adapters that an engine is told of at its start."""
    return {name: forged(seed, rank) for name, (seed, rank) in SEEDS.items()}


def stranger() -> AdapterFiles:
    """One that fits the model, and of which it is not told."""
    return forged(*STRANGER)


def forged(seed: int, rank: int) -> AdapterFiles:
    """An adapter for the tiny model."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return generate_adapter(CACHED, config, seed=seed, rank=rank)
