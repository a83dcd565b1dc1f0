"""One run: engines, oracles and adapter contents, opened when first needed and closed whole.

Only this module knows how many engines live: the one under test, a cold one for the oracle, and for a moment a fresh
one that a counterexample is confirmed on.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import psutil

from adapters import vllm, vllm_inproc
from adapters.base import Capability, Engine, EngineStartError, GroupShape
from adapters.checked import CheckedEngine
from adapters.fingerprint.topology import TOPOLOGIES
from adapters.noise import VARIABLE
from adapters.probes import Probed
from adapters.process import EngineProcess
from adapters.tiers import TIERS
from harness.budget import Budget
from harness.cell import Cell
from harness.cells import CELLS, plain_cell
from harness.checkers.finding import Rule
from harness.contents import Contents, make_contents, vetted
from harness.engines.kind import Kind, Setting
from harness.engines.kinds import KINDS, attached
from harness.events import EventLog
from harness.faults import plugin as faults
from harness.faults.registered import registered
from harness.models.adapters import tiny_model
from harness.options import PROFILES, Options, Profile, UsageError
from harness.oracle.base import Answers
from harness.oracle.engine import EngineOracle
from harness.oracle.other import ACROSS
from reports.schema import Calibration

CACHE = Path(".coldproof")
SLIDING_WINDOW_GROUPS = 6 * (GroupShape(vllm.BLOCK),)  # the tiny Gemma's, one a layer
OF_ADAPTERS = {Capability.ADAPTER_CHOICE, Capability.MIXED_ADAPTERS, Capability.RUNTIME_LORA}
ENGINE_BYTES = 3 * 2**30  # what a small CPU engine takes, and as much again to be safe


class Session:
    """Everything of one run that outlives a single requirement."""

    def __init__(self, options: Options, log: EventLog, root: Path, budget: Budget) -> None:
        self.options = options
        self.budget = budget
        self.log = log
        self.cache = root / CACHE / "cache"
        self.memos: dict[str, Answers] = {}
        self.contents: dict[bool, Contents] = {}  # by the kind of model: see Cell.sliding_window
        self.engines: list[CheckedEngine] = []
        self.tested: list[CheckedEngine] = []
        self.processes: list[EngineProcess] = []
        self.closing = False
        self.probed: dict[tuple[Cell, bool], Probed] = {}  # engines of one kind are asked once what they can do
        self.cold: dict[str, CheckedEngine] = {}  # cells whose cold answers are alike share one engine for them
        self.others: dict[str, CheckedEngine] = {}  # the other engine that --oracle names, for each kind of model
        self.calibrations: dict[str, tuple[Calibration, Rule]] = {}
        self.starts: list[float] = []
        self.started_engines = 0
        shared = options.shared_dir or root / CACHE
        shared.mkdir(parents=True, exist_ok=True)
        self.work = Path(tempfile.mkdtemp(prefix="work-", dir=shared))
        self.faulty = contextlib.ExitStack()
        self.marks = self.work / "fault"
        if options.fault is not None:
            self.faulty.enter_context(faults.chosen(options.fault, self.marks))
        if options.noise is not None:
            noisy = registered(
                self.work / "noise", "coldproof_noise", "adapters.noise:plant", {VARIABLE: options.noise}
            )
            self.faulty.enter_context(noisy)
        self._runs = 0
        self._starter = ThreadPoolExecutor(1)  # one start at a time: two would take twice as long each

    @property
    def profile(self) -> Profile:
        """The chosen profile's figures."""
        return PROFILES[self.options.profile]

    def prepare(self) -> None:
        """Make or check model and adapters. Raises UsageError."""
        if not self.options.attached:
            self.contents_of(CELLS["default"])

    def model(self, cell: Cell) -> str:
        """The model to serve: the user's, or a tiny one of the cell's kind."""
        if self.options.model is not None:
            return self.options.model
        return str(tiny_model(self.cache, sliding_window=self.has_window(cell)))

    def has_window(self, cell: Cell) -> bool:
        """Whether a cell's model is the one with sliding windows. The fingerprint worker brings its own layers."""
        return cell.sliding_window and not self.options.fingerprint

    def contents_of(self, cell: Cell) -> Contents:
        """The adapter contents that fit a cell's model."""
        kind = self.has_window(cell)
        if kind not in self.contents:
            config = Path(self.model(cell)) / "config.json"
            self.contents[kind] = make_contents(self.options.adapters, self.cache, config)
        return self.contents[kind]

    def open_engine(self, cell: Cell, *, caching: bool = True, purpose: str, other: str | None = None) -> CheckedEngine:
        """Spawn or attach. `other`: another engine than the one under test. Raises EngineStartError or UsageError."""
        began = time.monotonic()
        if other is not None:
            engine = self.start(cell, caching=caching, purpose=purpose, name=other, arguments=())
        elif self.options.attached:
            engine = self.attach(cell)
        else:
            before = faults.marks(self.marks, "planted")
            name, arguments = self.options.engine, self.options.engine_args
            engine = self.start(cell, caching=caching, purpose=purpose, name=name, arguments=arguments)
            self.check_fault(engine, before)
        checked = CheckedEngine(engine)
        self.engines.append(checked)
        if purpose == "tested":
            self.tested.append(checked)
        self.starts.append(round(time.monotonic() - began, 1))
        return checked

    def start(self, cell: Cell, *, caching: bool, purpose: str, name: str, arguments: tuple[str, ...]) -> Engine:
        """Start an engine of ours. Raises EngineStartError or UsageError."""
        self.started_engines += 1
        log = self.options.report_dir / f"engine-{self.started_engines:02d}-{purpose}.log"
        kind = KINDS.get(name)
        if kind is not None:
            return self.start_kind(kind, cell, caching=caching, log=log, arguments=arguments)
        port, arguments = split_port(arguments)
        options = vllm.VllmOptions(
            model=self.model(cell),
            prefix_caching=caching,
            arguments=(*cell.arguments, *arguments),
            log=log.resolve(),
            adapter_path=first_path(self.contents_of(cell)),
            probed=self.probed.get((cell, caching)),
            port=port if purpose == "tested" else None,
            most_requests=cell.most_requests,
            groups=SLIDING_WINDOW_GROUPS if self.has_window(cell) and self.options.model is None else (),
            topology=TOPOLOGIES[cell.topology] if self.options.fingerprint else None,
            events=cell.events and caching,
            tier=TIERS[cell.tier] if cell.tier is not None else None,
        )
        if name == "vllm-inproc":
            return vllm_inproc.start(options)
        engine = vllm.spawn(options, on_process=self.keep)
        self.probed[cell, caching] = engine.probed
        return engine

    def start_kind(self, kind: Kind, cell: Cell, *, caching: bool, log: Path, arguments: tuple[str, ...]) -> Engine:
        """An engine that is not vLLM. Raises EngineStartError."""
        if kind.start is None:
            raise UsageError(f"--engine {kind.name} needs --engine-url http://HOST:PORT")
        setting = Setting(
            model=self.model(cell),
            adapters=tuple(files.folder for files in self.contents_of(cell).values()),
            cell=cell,
            caching=caching,
            arguments=(*cell.arguments, *arguments),
            log=log.resolve(),
            on_process=self.keep,
        )
        return kind.start(setting)

    def check_fault(self, engine: Engine, before: int) -> None:
        """Raise EngineStartError when the chosen fault is not in the engine: no verdict on it would mean anything.

        `before`: the processes that had it before this start. Engines in this process share one.
        """
        others = 0 if self.options.engine == "vllm-inproc" else before
        if self.options.fault is not None and faults.marks(self.marks, "planted") <= others:
            engine.stop()
            raise EngineStartError(
                f"the fault {self.options.fault!r} was not planted: this engine does not load vLLM's general plugins"
            )

    def fault_acted(self) -> bool:
        """Whether the fault has made a difference in any engine so far."""
        return faults.marks(self.marks, "acted") > 0

    def cold_engine(self, cell: Cell) -> Future[CheckedEngine]:
        """The engine that gives a cell's cold answers: its own kind with caching off, or the one for all alike."""
        key = self.cell_of_answers(cell)
        return self.held(self.cold, key.name, lambda: self.open_engine(key, caching=False, purpose="cold"))

    def other_engine(self, cell: Cell, name: str) -> Future[CheckedEngine]:
        """Another engine, cold and in its plainest cell, with a cell's model: it answers for all that have this one."""
        plain = msgspec.structs.replace(plain_cell(name), sliding_window=cell.sliding_window)
        key = self.across(cell, name)
        return self.held(self.others, key, lambda: self.open_engine(plain, caching=False, purpose="other", other=name))

    def held(
        self, engines: dict[str, CheckedEngine], key: str, start: Callable[[], CheckedEngine]
    ) -> Future[CheckedEngine]:
        """One of the engines that a run keeps, started where there is none or where it is gone."""
        engine = engines.get(key)
        if engine is not None and engine.alive():
            done: Future[CheckedEngine] = Future()
            done.set_result(engine)
            return done

        def started() -> CheckedEngine:
            engines[key] = start()
            return engines[key]

        return self._starter.submit(started)

    def cell_of_answers(self, cell: Cell) -> Cell:
        """The cell whose cold engine answers for this one. Digests do not depend on the layers that keep them."""
        known = cell.alike and cell.name in CELLS
        return CELLS["default"] if known or self.options.fingerprint else cell

    def keep(self, process: EngineProcess) -> None:
        """Remember a process that is just starting; one that comes while the run is closing is ended at once."""
        self.processes.append(process)
        if self.closing:
            process.stop()

    def open_in_background(self, cell: Cell, *, caching: bool, purpose: str) -> Future[CheckedEngine]:
        """The same without waiting: engines start slowly and mostly alone."""
        return self._starter.submit(self.open_engine, cell, caching=caching, purpose=purpose)

    def attach(self, cell: Cell) -> Engine:
        """Attach to the user's server; adapters are forged for the model that it says it serves."""

        def adapter_for(root: str | None) -> str | None:
            source = self.options.model or root
            config = Path(source) / "config.json" if source else None
            self.contents[self.has_window(cell)] = make_contents(self.options.adapters, self.cache, config)
            return first_path(self.contents_of(cell))

        kind = attached(self.options.engine, self.options.engine_url)
        if self.options.engine_url is None or kind is None or kind.attach is None:
            raise UsageError(f"--engine {self.options.engine} needs --engine-url http://HOST:PORT")
        return kind.attach(self.options.engine_url, adapter_for=adapter_for)

    def vet_contents(self, engine: CheckedEngine, cell: Cell) -> None:
        """Have the engine load every adapter content once; go on with those it takes."""
        self.contents[self.has_window(cell)] = vetted(
            self.contents_of(cell),
            engine,
            given=bool(self.options.adapters),
            left_out=lambda words: self.log.emit("phase", words=words),
        )

    def oracle_for(self, name: str, engine: CheckedEngine, cell: Cell) -> EngineOracle:
        """An oracle over an engine, sharing the memory of the answers that hold in this cell."""
        adapters = list(self.contents_of(cell).values())
        can_salt = engine.capabilities[Capability.CACHE_SALT].present is True
        salted = name == "same-engine" or (name == "fresh-engine" and can_salt)
        return EngineOracle(name, engine, adapters, memo=self.memo(cell), salted=salted)

    def other_oracle(self, cell: Cell, name: str, engine: CheckedEngine) -> EngineOracle:
        """Another engine's cold answers, with a memory of their own. They hold in every cell of the model."""
        adapters = list(self.contents_of(cell).values())
        memo = self.memos.setdefault(self.across(cell, name), {})
        return EngineOracle(f"{ACROSS}{name}", engine, adapters, memo=memo)

    def across(self, cell: Cell, name: str) -> str:
        """What another engine's answers and the engine itself are kept under: no cell is called so."""
        return f"{ACROSS}{name}, {'sliding window' if self.has_window(cell) else 'plain'}"

    def memo(self, cell: Cell) -> Answers:
        """The answers known so far for a cell and all whose cold answers are alike."""
        return self.memos.setdefault(self.cell_of_answers(cell).name, {})

    def close_engine(self, engine: CheckedEngine) -> None:
        """Stop one engine."""
        engine.stop()
        self.engines = [other for other in self.engines if other is not engine]

    def has_room(self) -> bool:
        """Whether memory allows one engine more that is not needed yet."""
        return psutil.virtual_memory().available > ENGINE_BYTES

    def folder(self) -> Path:
        """A new folder for one workload's adapter files."""
        self._runs += 1
        return self.work / f"run{self._runs}"

    def close(self) -> None:
        """Stop every engine and remove the scratch files; also after Ctrl-C in the middle of a start."""
        self.closing = True
        for process in list(self.processes):
            process.stop()
        for engine in self.engines:
            engine.stop()
        self._starter.shutdown(wait=True, cancel_futures=True)
        self.faulty.close()
        shutil.rmtree(self.work, ignore_errors=True)

    @contextlib.contextmanager
    def fresh(self, cell: Cell, *, caching: bool) -> Iterator[CheckedEngine]:
        """An engine that has answered nothing yet, for as long as the block runs."""
        engine = self.open_engine(cell, caching=caching, purpose="fresh")
        try:
            yield engine
        finally:
            self.close_engine(engine)


def first_path(contents: Contents) -> str | None:
    """Some adapter's folder, to try loading with."""
    first = next(iter(contents.values()), None)
    return str(first.folder.resolve()) if first else None


def missing(engine: CheckedEngine, needs: tuple[Capability, ...], *, contents: int) -> list[str]:
    """Why a requirement cannot be tested here: each capability that is absent or unknown, with the evidence.

    Adapters need at least two contents to tell apart.
    """
    absent = []
    chosen = engine.capabilities[Capability.ADAPTER_CHOICE].present is True
    if OF_ADAPTERS & set(needs) and chosen and contents < 2:
        absent.append(f"{contents} usable adapter contents: give two that the engine loads with --adapter")
    for need in needs:
        support = engine.capabilities[need]
        if support.present is not True:
            absent.append(f"{need.value}: {support.evidence}")
    return absent


def split_port(arguments: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
    """Take `--port N` out of the engine's arguments: only the engine under test may have it."""
    rest = list(arguments)
    for i, word in enumerate(rest):
        value = word.partition("=")[2] if word.startswith("--port=") else None
        if word == "--port" and i + 1 < len(rest):
            value = rest[i + 1]
        if value is not None:
            if not value.isdigit() or not 0 < int(value) < 65536:
                raise UsageError(f"--engine-args: {value!r} is no port")
            del rest[i : i + (2 if word == "--port" else 1)]
            return int(value), tuple(rest)
    return None, tuple(rest)


def split_arguments(text: str) -> tuple[str, ...]:
    """Split --engine-args as a shell would. Raises UsageError for an open quote."""
    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--engine-args {text!r}: {problem}") from problem


__all__ = ["EngineStartError", "Session", "missing", "split_arguments", "split_port"]
