"""The engines of one run: started when first needed and stopped together.

Only this module knows how many engines are running: the one under test, a cold one for the oracle, and for a short time
a fresh one on which a counterexample is confirmed.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import psutil

from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import Engine, EngineStartError
from coldproof.adapters.protocol.request_time import RequestTime
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.sides import declare_apart
from coldproof.adapters.registry import ENGINES, attached, catalogue, plain_cell
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import SIDE_LOG, StartOptions
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.dropped_kinds import DroppedKinds
from coldproof.harness.execution.engines.given_capabilities import given_capabilities
from coldproof.harness.execution.engines.workspace import Workspace
from coldproof.harness.execution.models.contents import ServedFiles
from coldproof.harness.execution.oracles.factory import OracleFactory
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.options import PROFILES, Options, Profile, UsageError
from coldproof.harness.schema.results import Calibration
from coldproof.reports.files.own_folder import claim

# A request to an attached server may take as long as the budget, and at least this long: a server without enough CPU
# time has taken more than 20 s for an answer.
LEAST_REQUEST_SECONDS = 30.0
ENGINE_BYTES = 3 * 2**30  # twice the memory that a small CPU engine needs


class EnginePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where an engine runs that follows another one: the model's path, the storage, and what is different about it."""

    model: Path
    storage: Path
    changed: EngineChange


class StartClock:
    """The time in which engines start. Two that start at once count once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starting, self._since, self._seconds = 0, 0.0, 0.0

    def seconds(self) -> float:
        """Return the seconds so far."""
        with self._lock:
            return self._seconds + (time.monotonic() - self._since if self._starting else 0.0)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time that the block takes. Any thread may run it."""
        with self._lock:
            self._since = self._since if self._starting else time.monotonic()
            self._starting += 1
        try:
            yield
        finally:
            with self._lock:
                self._starting -= 1
                self._seconds += 0.0 if self._starting else time.monotonic() - self._since


class EnginePool:
    """All engines of one run, with their files, oracles and folders. It outlives a single requirement."""

    def __init__(self, options: Options, log: EventLog) -> None:
        self.options = options
        self.log = log
        self.workspace = Workspace(options.cache_dir, options.shared_dir)
        self.files = ServedFiles(options, self.workspace.cache, lambda words: log.emit("phase", words=words))
        self.oracles = OracleFactory(self.files)
        self.engines: list[CheckedEngine] = []
        self.tested: list[CheckedEngine] = []
        self.configurations: WeakKeyDictionary[CheckedEngine, tuple[Cell, bool]] = WeakKeyDictionary()
        self.processes: list[EngineProcess] = []
        self.closing = False
        self.time_left: Callable[[], float] = lambda: math.inf  # seconds until requests are cut off
        self.remembered: dict[Any, Any] = {}  # data that the starts of one kind of engine share
        self.cold: dict[str, CheckedEngine] = {}  # cold engines; cells with the same cold answers share one
        self.others: dict[str, CheckedEngine] = {}  # the other engine that --oracle names, for each kind of model
        self.calibrations: dict[str, tuple[Calibration, Rule]] = {}
        self.looked_again: set[str] = set()  # those of which more answers were measured
        self.dropped = DroppedKinds(log)
        self.starts: list[float] = []
        self.start_clock = StartClock()
        self.started_engines = 0
        self.injected = contextlib.ExitStack()
        self.inject()
        self._starter = ThreadPoolExecutor(1)  # one start at a time: two at once would take twice as long each

    @property
    def profile(self) -> Profile:
        """Return the chosen profile."""
        return PROFILES[self.options.profile]

    @property
    def calibration_seconds(self) -> float:
        """Return the seconds by which calibrations are sized: of a budget of the user's, the part of one cell."""
        options = self.options
        return options.seconds / (max(1, len(options.cells)) if options.keeps_budget else 1)

    def inject(self) -> None:
        """Start all engines of this run with the chosen repairs, the chosen fault and the chosen noise."""
        support = ENGINES[self.options.engine].repairs
        if self.options.repairs and support is not None:
            files = [one.path for one in self.options.repairs]
            self.injected.enter_context(support.planted(files, self.workspace.scratch / "repairs"))
        fault, noise = self.options.fault, self.options.noise
        if fault is not None:
            self.injected.enter_context(catalogue(self.options.engine).injected(fault, self.fault_folder))
        inject_noise = ENGINES[self.options.engine].noise if noise is not None else None
        if noise is not None and inject_noise is not None:
            self.injected.enter_context(inject_noise(noise, self.workspace.scratch / "noise"))

    @property
    def fault_folder(self) -> Path:
        """Return the folder in which engines record that an injected fault acted."""
        return self.workspace.scratch / "fault"

    def fault_acted(self) -> bool:
        """Return whether the injected fault has acted in any engine so far."""
        return self.options.fault is not None and catalogue(self.options.engine).acted(self.fault_folder)

    def prepare(self) -> None:
        """Generate or check the model and the adapters. Raises UsageError."""
        if not self.options.attached:
            self.files.contents_of(plain_cell(self.options.engine))

    def open_engine(
        self,
        cell: Cell,
        *,
        caching: bool = True,
        purpose: str,
        other: str | None = None,
        weights: str | None = None,
        place: EnginePlace | None = None,
    ) -> CheckedEngine:
        """Start or attach an engine. `other`: the name of an engine that is not the one under test.

        `weights`: the digest of the version to start with; None: the usual one. `place`: of an engine that follows
        another one. Raises EngineStartError or UsageError, and KeyboardInterrupt if the run is ending: the interrupt of
        a signal is lost if it arrives in a destructor, and the run would start the engines that it has just stopped.
        """
        if self.closing:
            raise KeyboardInterrupt("the run is ending")
        began = time.monotonic()
        with self.start_clock.running():
            if other is not None:
                engine = self.start(cell, caching=caching, purpose=purpose, name=other, arguments=())
            elif self.options.attached:
                engine = self.attach(cell, caching=caching)
            else:
                name, arguments = self.options.engine, self.options.engine_args
                engine = self.start(
                    cell, caching=caching, purpose=purpose, name=name, arguments=arguments, weights=weights, place=place
                )
        checked = CheckedEngine(engine, given=given_capabilities(engine, cell, self.options))
        self.engines.append(checked)
        self.configurations[checked] = (cell, caching)
        if purpose == "tested":
            self.tested.append(checked)
        self.starts.append(round(time.monotonic() - began, 1))
        return checked

    def start(
        self,
        cell: Cell,
        *,
        caching: bool,
        purpose: str,
        name: str,
        arguments: tuple[str, ...],
        weights: str | None = None,
        place: EnginePlace | None = None,
    ) -> Engine:
        """Start an engine. Raises EngineStartError or UsageError."""
        start = ENGINES[name].start
        if start is None:
            raise UsageError(f"--engine {name} needs --engine-url http://HOST:PORT")
        self.started_engines += 1
        of_layer = f"-{self.options.layer}" if self.options.joined else ""  # layers share the folder
        log = self.options.report_dir / f"engine{of_layer}-{self.started_engines:02d}-{purpose}.log"
        try:
            for file in (log, log.with_suffix(SIDE_LOG)):
                claim(file)
        except OSError as problem:
            raise EngineStartError(f"cannot write the engine's log: {problem}") from problem
        return start(
            StartOptions(
                model=self.model(cell, weights, place),
                storage=None if place is None else place.storage,
                changed=EngineChange.NOTHING if place is None else place.changed,
                adapters=tuple(files.folder for files in self.files.contents_of(cell).values()),
                cell=cell,
                caching=caching,
                arguments=(*cell.arguments, *arguments),
                log=log.resolve(),
                files=self.workspace.scratch / log.name,
                on_process=self.keep,
                worker=self.options.worker,
                tested=purpose == "tested",
                generated_model=self.options.model is None,
                remembered=self.remembered,
            )
        )

    def model(self, cell: Cell, weights: str | None, place: EnginePlace | None) -> str:
        """Return the model to start with: that of the place, of the version of the weights, or the cell's."""
        if place is not None:
            return str(place.model)
        return self.files.model(cell) if weights is None else self.files.folder_of(cell, weights)

    def changes(self) -> tuple[EngineChange, ...]:
        """Return what can be different about an engine that another one follows. Only for a generated model."""
        spec = ENGINES[self.options.engine]
        generated = self.options.model is None and not self.options.attached
        return spec.changes if generated else ()

    def cold_engine(self, cell: Cell, weights: str | None = None) -> Future[CheckedEngine]:
        """Return the engine for a cell's cold answers, with caching off. Cells with the same answers share it.

        Each version of the weights has an engine of its own, started with it: no update can be at fault there.
        """
        key = self.oracles.cell_of_answers(cell)
        name = key.name if weights is None else f"{key.name}, weights {weights}"

        def start() -> CheckedEngine:
            return self.open_engine(key, caching=False, purpose="cold", weights=weights)

        return self.shared_engine(self.cold, name, start)

    def other_engine(self, cell: Cell, name: str) -> Future[CheckedEngine]:
        """Return another engine with caching off in its plain cell. All cells with the same model share it."""
        plain = msgspec.structs.replace(plain_cell(name), model=cell.model)
        key = self.oracles.across(cell, name)

        def start() -> CheckedEngine:
            return self.open_engine(plain, caching=False, purpose="other", other=name)

        return self.shared_engine(self.others, key, start)

    def shared_engine(
        self, engines: dict[str, CheckedEngine], key: str, start: Callable[[], CheckedEngine]
    ) -> Future[CheckedEngine]:
        """Return a shared engine. Start it if there is none or if it has terminated."""
        engine = engines.get(key)
        if engine is not None and engine.alive():
            done: Future[CheckedEngine] = Future()
            done.set_result(engine)
            return done

        def started() -> CheckedEngine:
            engines[key] = start()
            return engines[key]

        return self._starter.submit(started)

    def keep(self, process: EngineProcess) -> None:
        """Register a starting process. If the run is closing already, stop it at once."""
        self.processes.append(process)
        if self.closing:
            process.stop()

    def open_in_background(self, cell: Cell, *, caching: bool, purpose: str) -> Future[CheckedEngine]:
        """Start an engine in the background."""
        return self._starter.submit(self.open_engine, cell, caching=caching, purpose=purpose)

    def attach(self, cell: Cell, *, caching: bool) -> Engine:
        """Attach to the user's server, or to the one for cold answers. Raises UsageError.

        Adapters are generated for the model that the first one reports.
        """
        url = self.options.engine_url if caching else self.options.cold_url

        def adapter_for(root: str | None) -> str | None:
            if caching:
                self.files.make_for(self.options.model or root, cell)
            first = next(iter(self.files.contents_of(cell).values()), None)
            return str(first.folder.resolve()) if first else None

        spec = attached(self.options.engine, self.options.engine_url)
        if url is None or spec is None or spec.attach is None:
            raise UsageError(f"--engine {self.options.engine} needs --engine-url http://HOST:PORT")
        limit = max(self.options.seconds, LEAST_REQUEST_SECONDS)
        # Read the attribute at each request: the clock of the run may begin later.
        time_of_request = RequestTime(limit, run_left=lambda: self.time_left())
        engine = spec.attach(url, adapter_for=adapter_for, time=time_of_request)
        if self.options.prefill_apart and caching:
            declare_apart(engine)
        return engine

    def vet_contents(self, engine: CheckedEngine, cell: Cell) -> None:
        """Load every adapter content once and keep only those that the engine accepts. Raises UsageError."""
        self.files.vet_contents(engine, cell, left_out=lambda words: self.log.emit("phase", words=words))

    def close_engine(self, engine: CheckedEngine) -> None:
        """Stop one engine."""
        engine.stop()
        self.engines = [other for other in self.engines if other is not engine]

    def close_cold(self, engine: Engine) -> None:
        """Stop a cold engine that has failed, so that the next request for it starts another one."""
        for key in [key for key, one in self.cold.items() if one is engine]:
            self.close_engine(self.cold.pop(key))

    def has_room(self) -> bool:
        """Return whether there is enough memory to start an engine in advance."""
        return psutil.virtual_memory().available > ENGINE_BYTES

    def close(self) -> None:
        """Stop every engine and remove the scratch files. It also works after Ctrl-C during a start."""
        self.closing = True
        for process in list(self.processes):
            process.stop()
        for engine in self.engines:
            engine.stop()
        self._starter.shutdown(wait=True, cancel_futures=True)
        self.injected.close()
        self.workspace.remove()

    @contextlib.contextmanager
    def fresh(self, cell: Cell, *, caching: bool, weights: str | None = None) -> Iterator[CheckedEngine]:
        """Yield a fresh engine and stop it when the block ends. `weights`: the digest of the version to start with."""
        engine = self.open_engine(cell, caching=caching, purpose="fresh", weights=weights)
        try:
            yield engine
        finally:
            self.close_engine(engine)
