"""The engines that the contract is tried on: all that this Python can start, and always the scripted one.

`--engine NAME` leaves that one alone; with `--engine-url` an engine that its owner started.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from adapters import vllm, vllm_inproc
from adapters.base import Engine
from adapters.checked import CheckedEngine
from adapters.fingerprint.topology import TOPOLOGIES
from harness.cell import Cell
from harness.engines import kinds
from harness.engines.kind import Kind, Setting
from harness.engines.kinds import KINDS
from harness.models.adapters import AdapterFiles, forge_adapter, tiny_model
from harness.options import UsageError
from harness.scripted import ScriptedEngine
from harness.session import CACHE

CACHED = Path(__file__).resolve().parents[2] / CACHE / "cache"
SEEDS = {"A": (1, 8), "B": (2, 8), "C": (3, 16)}  # content -> (seed, rank)
STRANGER = (9, 8)  # a content that no engine is told of at its start


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An engine to start: its cache on or off, told of adapters or of none, its log there."""

    caching: bool = True
    adapters: bool = True
    log: Path = Path()


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """An engine under contract. `spare`: more of it cost little: one without its cache, one without adapters."""

    name: str
    start: Callable[[Wanted], Engine]
    spare: bool = True


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
    startable = [kind for kind in KINDS.values() if kind.start is not None and kind.installed]
    here = [*of_coldproof(), *(of_kind(kind, cell) for kind in startable for cell in telling(kind.cells))]
    chosen = [one for one in here if engine is None or one.name.split(":")[0] == engine]
    if not chosen:
        package = KINDS[engine].package if engine in KINDS else None
        hint = f": install {package}" if package else f": choose one of {', '.join(sorted({s.name for s in here}))}"
        raise UsageError(f"no engine {engine!r} to try the contract on{hint}")
    return tuple(chosen)


def of_coldproof() -> Iterator[Subject]:
    """The scripted engine, and vLLM both ways where it is installed."""
    yield Subject(name="scripted", start=lambda wanted: ScriptedEngine(caching=wanted.caching))
    if importlib.util.find_spec("vllm") is not None:
        yield Subject(name="vllm-inproc", start=stepped(None))
        yield Subject(name="vllm-inproc:fingerprint", start=stepped("full"))
        yield Subject(name="vllm", start=spawned, spare=False)  # half a minute to start


def telling(cells: tuple[Cell, ...]) -> list[Cell]:
    """The first of a kind's cells, the first that has adapters, and the first with a second tier."""
    found = [next((cell for cell in cells if cell.covers(wanted)), cells[0]) for wanted in ("LORA-4", "TIER-1")]
    return list({cell.name: cell for cell in (cells[0], *found)}.values())


def of_kind(kind: Kind, cell: Cell) -> Subject:
    """An engine as the harness would start it for a cell."""
    start = kind.start
    assert start is not None

    def started(wanted: Wanted) -> Engine:
        setting = Setting(
            model=str(tiny_model(CACHED)),
            adapters=tuple(files.folder for files in contents().values()) if wanted.adapters else (),
            cell=cell,
            caching=wanted.caching,
            arguments=cell.arguments,
            log=wanted.log,
            on_process=lambda _process: None,
        )
        return start(setting)

    name = kind.name if cell is kind.cells[0] else f"{kind.name}:{cell.name}"
    return Subject(name=name, start=started, spare=kind.quick)


def attached(name: str, url: str) -> Subject:
    """An engine that runs already, and goes on when the tests are over. Its adapters are those that fit our model."""
    kind = kinds.attached(name, url)
    if kind is None or kind.attach is None:
        raise UsageError(f"--engine {name} is started here: leave out --engine-url")
    attach, path = kind.attach, str(contents()["A"].folder.resolve())
    return Subject(name=name, start=lambda _wanted: attach(url, adapter_for=lambda _root: path), spare=False)


def stepped(topology: str | None) -> Callable[[Wanted], Engine]:
    """vLLM in this process, with the tiny model or with the fingerprint worker."""

    def started(wanted: Wanted) -> Engine:
        return vllm_inproc.start(options(wanted, topology))

    return started


def spawned(wanted: Wanted) -> Engine:
    """vLLM's server."""
    return vllm.spawn(options(wanted, None), on_process=lambda _process: None)


def options(wanted: Wanted, topology: str | None) -> vllm.VllmOptions:
    """What vLLM is started with; it takes adapters at any time."""
    return vllm.VllmOptions(
        model=str(tiny_model(CACHED)),
        prefix_caching=wanted.caching,
        log=wanted.log,
        adapter_path=str(contents()["A"].folder.resolve()),
        topology=TOPOLOGIES[topology] if topology is not None else None,
    )


def contents() -> dict[str, AdapterFiles]:
    """The adapters that an engine is told of at its start."""
    return {name: forged(seed, rank) for name, (seed, rank) in SEEDS.items()}


def stranger() -> AdapterFiles:
    """One that fits the model, and of which it is not told."""
    return forged(*STRANGER)


def forged(seed: int, rank: int) -> AdapterFiles:
    """An adapter for the tiny model."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return forge_adapter(CACHED, config, seed=seed, rank=rank)
