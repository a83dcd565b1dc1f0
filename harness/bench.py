"""One cell's engines: the one under test, the cold one behind the oracle, fresh ones on their way; and what they run.

Nothing here knows a requirement. An engine that is lost is replaced; the oracle's troubles are no verdict.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import msgspec

from adapters.base import Capability, EngineDied, EngineShape, Metrics
from adapters.checked import CheckedEngine
from harness.between import calibrate_between
from harness.calibration import calibrate, found_earlier
from harness.cell import Cell
from harness.checkers.finding import Rule
from harness.contents import Contents
from harness.event_ledger import EventLedger
from harness.history import History, Outcome
from harness.options import UsageError
from harness.oracle.base import Oracle, question
from harness.oracle.closed_form import ClosedForm
from harness.oracle.engine import EngineOracle
from harness.oracle.fresh import FreshOracle
from harness.oracle.other import OtherEngine
from harness.requirement import Ran
from harness.runner import Run
from harness.session import Session
from harness.standby import Standby
from harness.workload import Workload, new_nonce
from reports.schema import Calibration

REMEMBERED = 200  # runs of an engine


class Bench:
    """The engines of one cell, and the comparison rule that they allow."""

    def __init__(self, session: Session, cell: Cell) -> None:
        self.session, self.cell = session, cell
        self.thinking = ThreadPoolExecutor(1)
        self.successors: dict[CheckedEngine, CheckedEngine] = {}  # an engine that was lost -> what took its place
        self.ledgers: WeakKeyDictionary[CheckedEngine, EventLedger] = WeakKeyDictionary()
        self.ran: WeakKeyDictionary[CheckedEngine, deque[Ran]] = WeakKeyDictionary()
        self.at_first: WeakKeyDictionary[CheckedEngine, Metrics] = WeakKeyDictionary()  # as its first run began
        self.standby = Standby(session, cell)
        self.engine, self.oracle_engine, self.oracle, self.cold = self.open()
        began = time.monotonic()
        self.calibration, self.own_rule = self.calibrate()
        self.rule = self.own_rule
        if isinstance(self.oracle, OtherEngine):
            self.calibration, self.rule = self.calibrate_between(self.oracle)
        self.rule = msgspec.structs.replace(self.rule, lossy=self.cell.lossy)
        self.calibration_seconds = round(time.monotonic() - began, 2)

    def open(self) -> tuple[CheckedEngine, CheckedEngine | None, Oracle, EngineOracle]:
        """Start what the chosen oracle needs, both engines at once. Raises EngineStartError."""
        session, options = self.session, self.session.options
        name, other = options.oracle, options.other_engine
        cold = session.cold_engine(self.cell) if name != "same-engine" and not options.attached else None
        beside = session.other_engine(self.cell, other) if other is not None else None
        engine = session.open_engine(self.cell, purpose="tested")
        session.vet_contents(engine, self.cell)
        check_mode(engine.shape, self.cell, other)
        cold_engine = cold.result() if cold is not None else None
        if beside is not None:
            session.vet_contents(beside.result(), self.cell)
        cold_oracle = (
            session.oracle_for("cold-engine", cold_engine, self.cell)
            if cold_engine is not None
            else session.oracle_for("same-engine", engine, self.cell)
        )
        if other is not None:
            return engine, cold_engine, self.across(other, cold_oracle), cold_oracle
        if cold_engine is None:
            return engine, None, cold_oracle, cold_oracle
        if name == "fresh-engine":
            fresh = FreshOracle(
                lambda: session.fresh(self.cell, caching=True),
                list(session.contents_of(self.cell).values()),
                memo=session.memo(self.cell),
            )
            return engine, cold_engine, fresh, cold_oracle
        if name == "closed-form":
            return engine, cold_engine, ClosedForm(cold_oracle), cold_oracle
        return engine, cold_engine, cold_oracle, cold_oracle

    def across(self, name: str, cold: EngineOracle) -> OtherEngine:
        """Another engine's answers, and a new engine whenever that one died."""

        def reopen() -> EngineOracle:
            engine = self.session.other_engine(self.cell, name).result()
            return self.session.other_oracle(self.cell, name, engine)

        return OtherEngine(reopen(), cold, reopen=reopen)

    @property
    def contents(self) -> Contents:
        """The adapter contents to play with here: none where the engine is started without."""
        return self.session.contents_of(self.cell) if self.can(Capability.ADAPTER_CHOICE) else {}

    def calibrate(self) -> tuple[Calibration, Rule]:
        """Find the comparison rule on the cold engine, once for all cells that it answers for; or take an earlier one.

        Raises UsageError where that is none of this engine's.
        """
        key = self.cell.name if self.oracle_engine is None else self.session.cell_of_answers(self.cell).name
        if key not in self.session.calibrations:
            digests = [files.digest for files in self.contents.values()]
            shape = (self.oracle_engine or self.engine).shape
            source = self.session.options.calibration
            earlier = found_earlier(source, cell=key, version=self.engine.version) if source else None
            self.session.calibrations[key] = earlier or calibrate(
                self.cold, digests, cell=key, block=shape.block_size, slots=shape.adapter_slots or 1
            )
            if isinstance(self.oracle, ClosedForm):
                self.oracle.verify(digests)
        return self.session.calibrations[key]

    def calibrate_between(self, oracle: OtherEngine) -> tuple[Calibration, Rule]:
        """Find the rule for comparing with another engine: of this cell's cold engine, whose own is known by now."""
        key = f"{oracle.name}, {self.calibration.cell}"
        if key not in self.session.calibrations:
            self.session.calibrations[key] = calibrate_between(
                self.cold,
                oracle.other,
                {files.digest: name for name, files in self.contents.items()},
                name=oracle.name,
                block=self.engine.shape.block_size,
                found=self.calibration,
            )
        return self.session.calibrations[key]

    def judged_by(self, *, ground: bool) -> tuple[Oracle, Rule]:
        """What answers are compared with, and how. `ground`: the engine without its cache is compared with itself."""
        own = ground and isinstance(self.oracle, OtherEngine)
        return (self.cold, self.own_rule) if own else (self.oracle, self.rule)

    def can(self, capability: Capability) -> bool:
        """Whether the engine under test has a capability, for workloads that can do without it."""
        return self.engine.capabilities[capability].present is True

    def run(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> History:
        """One run under a new nonce, or the one given."""
        apart = self.oracle_engine is not None and engine is not self.oracle_engine
        early = self.ask_early if apart else lambda _: None
        ran = self.ran.setdefault(engine, deque(maxlen=REMEMBERED))
        nonce, started = nonce or new_nonce([one.nonce for one in ran]), time.monotonic()
        history = Run(
            engine,
            workload,
            nonce,
            self.contents,
            self.session.folder(),
            on_outcome=early,
            stall_seconds=self.calibration.stall_seconds,
            ledger=self.ledgers.setdefault(engine, EventLedger()),
            scored=self.own_rule.band is not None,
        ).history()
        ran.append(Ran(workload, nonce, time.monotonic() - started))
        began = history.steps[0].before if history.steps else Metrics()
        return msgspec.structs.replace(history, left_over=left_over(self.at_first.setdefault(engine, began), began))

    def ran_on(self, engine: CheckedEngine) -> tuple[Ran, ...]:
        """What the engine under test has run since it started, or the latest of it. Others are asked questions, too."""
        return tuple(self.ran.get(engine, ())) if engine is self.engine else ()

    def ask_early(self, outcome: Outcome) -> None:
        """Have the oracle think about a request while the engine under test goes on. The judge asks again and waits."""
        if outcome.answered and not outcome.refused:
            for identity in outcome.identities:
                self.thinking.submit(self.oracle.ask, question(outcome, identity))

    def living(self, engine: CheckedEngine) -> CheckedEngine:
        """The engine, or what has taken its place; the tested and the cold one are replaced when they are found dead.

        Raises EngineStartError, or EngineDied for one that is not ours to restart.
        """
        while engine in self.successors:
            engine = self.successors[engine]
        return engine if engine.alive() else self.replaced(engine)

    def replaced(self, engine: CheckedEngine, *, lost: bool = True) -> CheckedEngine:
        """What takes the place of an engine that is dead or silent; itself where it has no place here."""
        if engine is self.engine:
            self.engine = self.successors[engine] = self.replace(engine, lost=lost)
        elif engine is self.oracle_engine:
            self.successors[engine] = self.replace_oracle(engine)
        return self.successors.get(engine, engine)

    def replace(self, engine: CheckedEngine, *, lost: bool = True) -> CheckedEngine:
        """A new engine in place of a dead or silent one. Raises EngineDied for one that is not ours to restart."""
        if self.session.options.attached:
            raise EngineDied(f"{engine.config.get('url', 'the engine')} is gone, and it is not Coldproof's to restart")
        if lost:
            self.session.log.emit("engine_lost", cell=self.cell.name, log_tail=engine.log_tail())
        self.session.close_engine(engine)
        new = self.session.open_engine(self.cell, purpose="tested")
        if isinstance(self.oracle, EngineOracle) and self.oracle.engine is engine:
            self.oracle = self.cold = self.session.oracle_for(self.oracle.name, new, self.cell)
        return new

    def replace_oracle(self, dead: CheckedEngine) -> CheckedEngine:
        """A new cold engine in place of one that died: the oracle's troubles are no verdict on the engine."""
        self.session.log.emit("engine_lost", cell=self.cell.name, log_tail=dead.log_tail())
        self.session.close_engine(dead)
        self.oracle_engine = self.session.cold_engine(self.cell).result()
        self.cold = self.session.oracle_for("cold-engine", self.oracle_engine, self.cell)
        if isinstance(self.oracle, EngineOracle):
            self.oracle = self.cold
        elif isinstance(self.oracle, ClosedForm | OtherEngine):
            self.oracle.cold = self.cold
        return self.oracle_engine

    def control(self, *, cold: bool) -> tuple[CheckedEngine | None, bool]:
        """The engine for the control 'caching off', and whether it was started for this.

        The oracle's will do where it is of this cell's very kind; another cell's has another pool and scheduler.
        """
        if cold or self.oracle_engine is None:
            return None, False
        if self.session.cell_of_answers(self.cell) == self.cell:
            return self.oracle_engine, False
        engine, _ = self.standby.take(caching=False)
        return engine, True


def check_mode(shape: EngineShape, cell: Cell, other: str | None) -> None:
    """Answers that a mode changes by design are judged only where the cell says so, and by engines in the same mode.
    Raises UsageError."""
    if shape.moves_pieces_of and shape.prefix_caching and not cell.lossy:
        raise UsageError(
            f"the engine reuses pieces of {shape.moves_pieces_of} tokens at other places, which changes answers by "
            f"design, and cell {cell.name!r} is for exact ones: choose a cell that is for it (--cells list)"
        )
    if other is not None and (shape.moves_pieces_of or shape.shifts_context):
        raise UsageError(f"cell {cell.name!r} changes answers by design: no other engine's can be expected of it")


def left_over(at_first: Metrics, now: Metrics) -> Metrics:
    """What an engine's gauges say now that they did not say before its first run. An engine that never rested has left
    nothing over: that it holds something is its own, whatever was run on it."""
    return Metrics(
        running=None if at_first.running else now.running,
        waiting=None if at_first.waiting else now.waiting,
        pool_usage=None if at_first.pool_usage else now.pool_usage,
    )
