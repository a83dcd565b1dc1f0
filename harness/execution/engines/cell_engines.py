"""The engines of one cell: the one under test, the cold one of the oracle, fresh ones; and the runs on them.

A lost engine is replaced. A failure of the cold engine is never a verdict on the engine under test.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

import msgspec

from coldproof.adapters.protocol.capabilities import OF_ADAPTERS, Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import PLAIN
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.weights import flush_with_updates
from coldproof.adapters.registry import promise_of
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.weight_promise import WeightPromise, chosen_promise
from coldproof.harness.execution.engines.cell_start import (
    ComparisonRules,
    StartedEngines,
    find_rules,
    renew_cold,
    rule_after_second_calibration,
    start_engines,
    usable_contents,
    use_without,
)
from coldproof.harness.execution.engines.lives import EngineLives
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.engines.standby import Standby
from coldproof.harness.execution.models.contents import Contents
from coldproof.harness.execution.models.versions import Versions
from coldproof.harness.execution.oracles.cross_engine import OtherEngine
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.engine_age import age_after
from coldproof.harness.history.records import EngineAge, History, Outcome
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Oracle, Question, question
from coldproof.harness.judgement.trial import Ran
from coldproof.harness.workload.steps import Workload, lives_of
from coldproof.harness.workload.tokens import new_nonce

REMEMBERED = 200  # latest runs of an engine that are kept


class CellEngines:
    """The engines of one cell, its oracle and its comparison rule."""

    def __init__(self, pool: EnginePool, cell: Cell, started: StartedEngines, rules: ComparisonRules) -> None:
        """Use started engines and found rules. `open` does all of this."""
        self.pool, self.cell = pool, cell
        self.engine, self.oracle_engine = started.tested, started.cold_engine
        self.oracle, self.cold = started.oracle, started.cold
        self.calibration, self.rule, self.own_rule = rules.calibration, rules.rule, rules.own_rule
        self.calibration_seconds, self.ended = rules.seconds, rules.ended
        self.latest_seconds = 0.0  # of the latest workload; its engine may have been replaced since
        self.standby = Standby(pool, cell)
        self.successors: dict[CheckedEngine, CheckedEngine] = {}  # a lost engine -> its replacement
        self.ledgers: WeakKeyDictionary[CheckedEngine, EventLedger] = WeakKeyDictionary()
        self.ran: WeakKeyDictionary[CheckedEngine, deque[Ran]] = WeakKeyDictionary()
        self.ages: WeakKeyDictionary[CheckedEngine, EngineAge] = WeakKeyDictionary()  # after its runs
        self.at_first: WeakKeyDictionary[CheckedEngine, Metrics] = WeakKeyDictionary()  # at the start of its first run
        self._background = ThreadPoolExecutor(1)
        self._pending: list[Question] = []  # questions for the background

    @classmethod
    def open(
        cls, pool: EnginePool, cell: Cell, *, on_start: Callable[[CheckedEngine], None] = lambda _: None
    ) -> CellEngines:
        """Start the engines of a cell and calibrate. Raises EngineStartError, OracleError or UsageError.

        `on_start` is called with the engine under test, before the calibration.
        """
        started = start_engines(pool, cell)
        on_start(started.tested)
        rules = find_rules(pool, cell, started)
        if started.cold_engine is not None:  # a request of the calibration may have ended the first one
            cold_engine = pool.cold_engine(cell).result()
            if started.cold.engine is not cold_engine:
                started.cold.use(cold_engine)
            started = msgspec.structs.replace(started, cold_engine=cold_engine)
        return cls(pool, cell, started, rules)

    @property
    def contents(self) -> Contents:
        """Return the adapter contents of the cell; none if requests cannot choose an adapter."""
        return usable_contents(self.pool, self.cell, self.engine)

    @property
    def versions(self) -> Versions:
        """Return the versions of the weights; none if the engine cannot change them while it runs."""
        return self.pool.files.versions_of(self.cell) if self.can(Capability.WEIGHT_UPDATES) else {}

    @property
    def promise(self) -> WeightPromise:
        """Return what is tested after an update of the weights: what the engine documents, or the user's choice."""
        if self.pool.options.weight_policy is not None:
            return chosen_promise(self.pool.options.weight_policy)
        return promise_of(self.pool.options.engine, self.engine.config)

    def oracle_and_rule(self, *, ground: bool) -> tuple[Oracle, Rule]:
        """Return the oracle and the rule. `ground`: those for the engine without its cache, compared with itself."""
        own = ground and isinstance(self.oracle, OtherEngine)
        return (self.cold, self.own_rule) if own else (self.oracle, self.rule)

    def can(self, capability: Capability) -> bool:
        """Return whether the engine under test has a capability, and what it takes to use it: adapters that fit."""
        if capability in OF_ADAPTERS and not self.contents:
            return False
        return self.engine.capabilities[capability].present is True

    def run(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> History:
        """Run a workload under a new nonce, or under `nonce`, and return its history.

        A workload with restarts runs on engines of its own, with the configuration of `engine`.
        """
        if lives_of(workload)[1:]:
            cell, caching = self.pool.configurations[engine]
            with EngineLives(self.pool, cell, self.pool.workspace.folder(), caching=caching) as lives:
                return self.workload_run(lives.next(lives_of(workload)[0]), workload, nonce, lives.next).history()
        separate = self.oracle_engine is not None and engine is not self.oracle_engine
        prefetch = self.prefetch if separate else lambda _: None
        ran = self.ran.setdefault(engine, deque(maxlen=REMEMBERED))
        nonce, started = nonce or new_nonce([one.nonce for one in ran]), time.monotonic()
        left_requests = bool(ran) and any(request.abort for _, _, request in ran[-1].workload.requests())
        idle_first = left_requests and not self.pool.options.shared  # other clients may keep a shared server busy
        history = self.workload_run(engine, workload, nonce, on_request=prefetch, idle_first=idle_first).history()
        self.latest_seconds = time.monotonic() - started
        ran.append(Ran(workload, nonce, self.latest_seconds))
        began = history.steps[0].before if history.steps else Metrics()
        left = left_over(self.at_first.setdefault(engine, began), began)
        history = msgspec.structs.replace(history, left_over=left, age=self.ages.get(engine, EngineAge()))
        self.ages[engine] = age_after(history)
        return history

    def workload_run(
        self,
        engine: CheckedEngine,
        workload: Workload,
        nonce: str | None,
        next_engine: Callable[[EngineChange], CheckedEngine] | None = None,
        *,
        on_request: Callable[[Outcome], None] = lambda _: None,
        idle_first: bool = False,
    ) -> WorkloadRun:
        """Return a run of a workload on an engine. `next_engine`: starts the engine that follows at a restart."""
        flush_with_updates(engine.engine, self.promise.policy)
        return WorkloadRun(
            engine,
            workload,
            nonce or new_nonce([]),
            self.contents,
            self.pool.workspace.folder(),
            on_request=on_request,
            stall_seconds=self.calibration.stall_seconds,
            ledger=self.ledgers.setdefault(engine, EventLedger()),
            scored=self.own_rule.band is not None or self.own_rule.cold.step is not None,
            versions=self.versions,
            policy=self.promise.policy,
            next_engine=next_engine,
            idle_first=idle_first,
        )

    def runs_of(self, engine: CheckedEngine) -> tuple[Ran, ...]:
        """Return the latest runs of the engine under test. Return () for other engines, which also answer questions."""
        return tuple(self.ran.get(engine, ())) if engine is self.engine else ()

    def prefetch(self, planned: Outcome) -> None:
        """Query the oracle about a plain request in the background. The answer is in its memory when the judge asks.

        Other requests wait until the engine under test has answered: one that it dies of would end both engines. So do
        all questions that the engine under test answers itself without salts: they would be in its cache, or empty it.
        """
        if planned.options == PLAIN and not self.cold.saltless:
            self._pending += [question(planned, identity) for identity in planned.identities]
            self._background.submit(self.ask_pending)

    def ask_pending(self) -> None:
        """Query the oracle about all requests since the last call, together if it takes batches."""
        pending, self._pending = self._pending, []
        self.oracle.ask_all(pending)

    def live_engine(self, engine: CheckedEngine) -> CheckedEngine:
        """Return the engine or its replacement. Replace the tested or the cold engine if it has terminated.

        Raises EngineStartError, or EngineDied for an attached server.
        """
        while engine in self.successors:
            engine = self.successors[engine]
        return engine if engine.alive() else self.replace_lost(engine)

    def replace_lost(self, engine: CheckedEngine, *, lost: bool = True) -> CheckedEngine:
        """Replace the tested or the cold engine and return the new one. Return any other engine unchanged."""
        if engine is self.engine:
            self.engine = self.successors[engine] = self.replace(engine, lost=lost)
        elif engine is self.oracle_engine:
            self.successors[engine] = self.replace_oracle()
        return self.successors.get(engine, engine)

    def replace(self, engine: CheckedEngine, *, lost: bool = True) -> CheckedEngine:
        """Stop an engine and return a new one. `lost`: it crashed. Raises EngineDied for an attached server."""
        if self.pool.options.attached:
            raise EngineDied(
                f"{engine.config.get('url', 'the engine')} has terminated, and Coldproof does not manage it"
            )
        if lost:
            self.pool.log.emit("engine_lost", cell=self.cell.name, log_tail=engine.log_tail())
        self.pool.close_engine(engine)
        new = self.pool.open_engine(self.cell, purpose="tested")
        if isinstance(self.oracle, EngineOracle) and self.oracle.engine is engine:
            self.oracle = self.cold = self.pool.oracles.oracle_for(self.oracle.name, new, self.cell)
        return new

    def replace_oracle(self) -> CheckedEngine:
        """Return a new cold engine in place of one that crashed. The oracles that ask it ask the new one."""
        self.oracle_engine = renew_cold(self.pool, self.cell, self.cold)
        return self.oracle_engine

    def control(self, *, cold: bool) -> tuple[CheckedEngine | None, bool]:
        """Return the engine for the control 'caching off', and whether it was started for this.

        The oracle's engine is used if it has this cell's configuration. Another cell's has another pool and scheduler.
        """
        if cold or self.oracle_engine is None:
            return None, False
        if self.pool.oracles.cell_of_answers(self.cell) == self.cell:
            return self.oracle_engine, False
        engine, _ = self.standby.take(caching=False)
        return engine, True

    def drop_kind(self, dropped: DroppedKind) -> None:
        """Stop sending a kind of request in this run, to the cold engine too."""
        self.pool.dropped.add(dropped)
        use_without(self.cold, self.pool.dropped)

    def look_again(self) -> bool:
        """Measure more cold answers before one under an exact rule is called wrong, once.

        Return whether that changed the rule: it rests on more answers, or has a tolerance if these differ. Raises
        OracleError.
        """
        before = self.oracle_engine
        started = StartedEngines(tested=self.engine, cold_engine=before, oracle=self.oracle, cold=self.cold)
        measured = rule_after_second_calibration(self.pool, self.cell, started, self.calibration)
        if before is not None and self.cold.engine is not before:  # a request ended it
            self.oracle_engine = self.successors[before] = self.pool.cold_engine(self.cell).result()
        if measured is None:
            return False
        self.calibration, self.own_rule = measured
        self.rule = msgspec.structs.replace(self.own_rule, lossy=self.rule.lossy)
        self.emit_calibration()
        return True

    def refute_rounding(self) -> None:
        """Let rounding explain no answer of this cell from now on: more diverged than it explains."""
        self.rule, self.own_rule = (msgspec.structs.replace(rule, rounding=None) for rule in (self.rule, self.own_rule))
        self.calibration = msgspec.structs.replace(self.calibration, rounding=None)
        self.note("More answers diverged between two close tokens than rounding explains: since then, each counts.")
        self.emit_calibration()

    def exclude_mixture(self, mixture: str) -> None:
        """Record that a mixture failed with caching off, so that no workload contains it from now on.

        It holds for all cells with these cold answers, of which others may be opened later.
        """
        mixtures, key = {**self.calibration.mixtures, mixture: False}, self.calibration.cell
        self.calibration = msgspec.structs.replace(self.calibration, mixtures=mixtures)
        if key in self.pool.calibrations:
            shared, rule = self.pool.calibrations[key]
            without = {**shared.mixtures, mixture: False}
            self.pool.calibrations[key] = msgspec.structs.replace(shared, mixtures=without), rule
        self.note(f"The mixture '{mixture}' failed with caching off and has been left out since.")
        self.emit_calibration()

    def note(self, words: str) -> None:
        """Add a note to the calibration for the reader of the verdicts; "" adds none."""
        if words:
            self.calibration = msgspec.structs.replace(self.calibration, notes=[*self.calibration.notes, words])

    def emit_calibration(self) -> None:
        """Emit the current calibration."""
        self.pool.log.emit(
            "calibration", calibration=self.calibration, seconds=self.calibration_seconds, own_rule=self.own_rule
        )
        for mixture, holds in self.calibration.mixtures.items():
            if not holds:
                self.pool.log.emit("mixture_excluded", cell=self.cell.name, mixture=mixture)

    def cancel_questions(self) -> None:
        """Cancel the pending questions in the background. The engines are stopped with the pool."""
        self._background.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Stop the engines that no other cell uses, including unused fresh ones."""
        self.cancel_questions()
        self.standby.discard()
        self.pool.close_engine(self.engine)
        if self.oracle_engine is not None and not self.pool.oracles.shares_answers(self.cell):
            self.pool.close_engine(self.oracle_engine)


def left_over(at_first: Metrics, now: Metrics) -> Metrics:
    """Return the gauges that earlier runs may have left above zero.

    A gauge that was above zero before the first run is None: the engine itself holds something, whatever was run on it.
    """
    return Metrics(
        running=None if at_first.running else now.running,
        waiting=None if at_first.waiting else now.waiting,
        pool_usage=None if at_first.pool_usage else now.pool_usage,
    )
