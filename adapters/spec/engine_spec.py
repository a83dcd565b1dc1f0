"""The specification of an engine: its cells, how to start it, its control variants, its faults and its reproducers.

The adapter itself uses only `StartOptions`. See docs/adding-an-engine.md.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import Cell, EngineVariant
from coldproof.adapters.spec.crossings import Crossings
from coldproof.adapters.spec.fault import Fault
from coldproof.adapters.spec.layer import SERVER_LAYER, Layer
from coldproof.adapters.spec.release_package import ReleasePackage
from coldproof.adapters.spec.reproduction import Reproduction
from coldproof.adapters.spec.switch import Switch
from coldproof.adapters.spec.weight_promise import UNDOCUMENTED, WeightPromise

MODEL = "model"  # the worker of every engine: a neural network
SIDE_LOG = ".tier-server.log"
ATTACH = "--engine-url"  # in `default_for`: the engine is the default for attached servers


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an engine. `model`: the model's folder. `adapters`: the folders of all adapters of the run.

    `arguments`: the cell's arguments, then the user's. `caching`: whether the prefix cache is on. `log`: the log file.
    A server beside the engine logs to the same name with SIDE_LOG.
    `on_process` is called with each process right after its start, so that Ctrl-C can end it.
    `tested`: this is the engine under test, not another engine of the run.
    `remembered`: a store that all starts of one run share.
    """

    model: str
    adapters: tuple[Path, ...]
    cell: Cell
    caching: bool
    arguments: tuple[str, ...]
    log: Path
    on_process: Callable[[EngineProcess], None]
    worker: str = MODEL
    tested: bool = False
    storage: Path | None = None  # the folder for KV that outlives the engine; None: one of its own
    changed: EngineChange = EngineChange.NOTHING  # what is different about the engine; the model's files are already
    generated_model: bool = True  # Coldproof generated the model, so that its layers are known
    remembered: dict[Any, Any] = {}
    files: Path | None = None  # a path whose folder is for what the engine needs while it runs; None: that of the log

    def folder(self, kind: str) -> Path:
        """Return a folder for files of this engine. It does not exist yet."""
        return (self.files or self.log).with_suffix(f".{kind}")


class FaultCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The faults that can be injected into an engine, by name.

    `injected(name, folder)`: a context manager. Every engine that starts inside it has the fault. The fault keeps its
    own files in the folder, which it creates.
    `acted(folder)`: whether the fault has changed the behaviour of any of these engines.
    """

    faults: Mapping[str, Fault]
    listing: Callable[[], str]
    injected: Callable[[str, Path], AbstractContextManager[None]]
    acted: Callable[[Path], bool]


class RepairSupport(msgspec.Struct, frozen=True, kw_only=True):
    """How repairs get into an engine. `findings`: the folder of its findings, which have the repairs.

    `planted(files, folder)`: a context manager. Every engine that starts inside it has the repairs in these files. What
    it needs is written to the folder.
    """

    findings: str
    planted: Callable[[Sequence[Path], Path], AbstractContextManager[None]]


AdapterFor = Callable[[str | None], str | None]  # the model's folder or None -> the folder of an adapter that fits it


class Attach(Protocol):
    """Attaches to a server. Raises EngineStartError with the reason."""

    def __call__(self, url: str, *, adapter_for: AdapterFor, time: RequestTime) -> Engine:
        """Return the engine at `url`. `adapter_for` returns an adapter that fits the server's model, for the probes.

        `time`: how long each request may take.
        """


class ConnectorRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that tests a KV connector class: its options, and the traits of cells whose requirements it tests."""

    engine: str
    worker: str
    cells: tuple[str, ...]
    engine_args: str
    traits: tuple[str, ...]


class ConnectorRuns(Protocol):
    """Returns a run that tests a KV connector class. Raises ValueError with the reason."""

    def __call__(
        self, connector: str, options: dict[str, Any], *, load_failures: str | None, events: bool, engine_args: str
    ) -> ConnectorRun:
        """Return the run for `MODULE:CLASS` with its options; `load_failures`: `recompute`, `fail`, or None.

        `events`: the connector publishes KV events.
        """


class FieldCells(msgspec.Struct, frozen=True, kw_only=True):
    """The cells in which the scripts of public bug reports run: see harness/power/field_scripts.py.

    `pool` returns one with a pool of this many usable blocks. `groups`: one with several groups of blocks, by worker.
    """

    plain: Cell
    pool: Callable[[int], Cell]
    groups: Mapping[str, Cell]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. `package`: the Python packages to install, separated by spaces; None if there are none.

    `start` raises EngineStartError with the reason and the end of the log. None: Coldproof cannot start the engine.
    `attach` connects to a running server by its URL.
    `quick`: the engine starts in a second or two. `many_examples`: an example is cheap, so that more are drawn.
    `default_for`: the workers, or ATTACH, for which this is the default engine. A case of a default engine is replayed
    on the current default engine.
    `check_arguments` raises ValueError for invalid arguments of the user.
    `faults` imports the catalogue. None: faults cannot be injected.
    `repairs`: how repairs get into it. None: it is not written in Python, or Coldproof does not start it.
    `noise(KIND:NATS, folder)`: a context manager. Every engine that starts inside it has this noise in its scores.
    `reproduction`: how a stand-alone script uses the engine. None: in the same way as the default engine's server.
    `profiles`: by profile and worker, the names of the cells that the profile has. No entry: all cells of the engine.
    `layer`: the name of the layer that this engine is. `more_layers`: layers that run beside it, first ones first.
    `preload` imports the modules for a start, in processes that fork before they start engines.
    `recognises`: whether a server that another adapter is attached to is this engine, by that adapter's configuration.
    `switches`: what an attached server needs to be started with, so that more of it can be tested.
    """

    name: str
    about: str
    cells: tuple[Cell, ...] = ()
    start: Callable[[StartOptions], Engine] | None = None
    attach: Attach | None = None
    package: str | None = None
    title: str = ""  # the engine's name in reports; empty: `name`
    quick: bool = True
    many_examples: bool = True
    workers: tuple[str, ...] = (MODEL,)
    default_for: tuple[str, ...] = ()
    variants: Callable[[Cell, EngineShape, tuple[str, ...]], Iterator[EngineVariant]] = lambda *_: iter(())
    check_arguments: Callable[[tuple[str, ...]], object] | None = None
    faults: Callable[[], FaultCatalogue] | None = None
    repairs: RepairSupport | None = None
    noise: Callable[[str, Path], AbstractContextManager[None]] | None = None
    reproduction: Reproduction | None = None
    preload: Callable[[], None] | None = None
    changes: tuple[EngineChange, ...] = ()  # the differences with which the engine can be started
    profiles: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
    field_cells: FieldCells | None = None
    layer: str = SERVER_LAYER
    more_layers: tuple[Layer, ...] = ()
    known_issues: Path | None = None  # the file with the engine's waivers
    past_issues: Path | None = None  # the same for earlier releases: a history explains violations with both
    releases: ReleasePackage | None = None  # how other releases are installed; None: Coldproof cannot
    weights: WeightPromise = UNDOCUMENTED  # what the engine promises after an update of its weights
    connector: ConnectorRuns | None = None  # None: the engine has no connectors that a user can write
    recognises: Callable[[Mapping[str, str]], bool] = lambda _config: False
    switches: tuple[Switch, ...] = ()
    crossings: Crossings | None = None  # None: its features are not crossed

    def __post_init__(self) -> None:
        """Raise ValueError for cells of another engine: a run would have nothing to test."""
        obstacles = [cell.obstacle(self.name, worker) for cell in self.cells for worker in self.workers]
        if obstacles and all(obstacles):
            raise ValueError(f"the engine {self.name!r} can run none of its cells: {obstacles[0]}")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers of a run on this engine: its own is the last."""
        return (*self.more_layers, Layer(name=self.layer, engine=self.name))

    def profile_cells(self, profile: str, worker: str) -> tuple[str, ...]:
        """Return the names of the cells of a profile with a worker. Empty: the profile has all cells."""
        return self.profiles.get(profile, {}).get(worker, ())

    def crossed_cells(self, profile: str, worker: str) -> tuple[Cell, ...]:
        """Return the crossed cells of a profile with a worker. An engine that starts slowly has none in a profile."""
        crossed = self.crossings.cells(profile) if self.crossings is not None and self.quick else ()
        return tuple(cell for cell in crossed if cell.fits(self.name, worker))

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the names of the engine's distributions; empty for attached servers."""
        return tuple((self.package or "").split())

    @property
    def installed(self) -> bool:
        """Return whether the engine's packages are installed. Attached servers need none."""
        try:
            return all(importlib.metadata.version(package) for package in self.packages)
        except importlib.metadata.PackageNotFoundError:
            return False
