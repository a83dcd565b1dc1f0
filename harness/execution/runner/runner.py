"""Runs a workload on an engine and records its history.

The runner compares nothing. If the engine refuses, crashes or does not answer, the history records it. Only a failure
of the harness itself raises an exception.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import (
    Engine,
    EngineDied,
    EngineError,
    EngineSilent,
    EngineStartError,
    RequestRefused,
    Served,
)
from coldproof.adapters.protocol.kv_events import Published
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.protocol.request_time import RequestOverdue
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.weights import WeightPolicy
from coldproof.harness.execution.models.lora import AdapterFiles
from coldproof.harness.execution.models.versions import Versions
from coldproof.harness.execution.runner.adapter_names import AdapterNames
from coldproof.harness.execution.runner.burst import BurstMonitor, Change
from coldproof.harness.execution.runner.changes import Changes
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger, RunBatches
from coldproof.harness.execution.runner.perform import load_performers, perform, perform_apart
from coldproof.harness.execution.runner.requests import RunRequests, outcome
from coldproof.harness.execution.runner.served_weights import ServedWeights
from coldproof.harness.execution.runner.step_log import StepLog
from coldproof.harness.history.kv_events import RunEvents
from coldproof.harness.history.records import History, Outcome, QueueSample, StepRecord
from coldproof.harness.workload.steps import START_WEIGHTS, Burst, Step, Workload, lives_of

Reported = TypeVar("Reported")

STALL_SECONDS = 60.0  # used if no calibration has measured how fast the engine answers
SETTLE_SECONDS, SETTLE_POLLS = 5.0, 25  # how long an engine may take to free everything
BLINK_SECONDS = 0.001  # shows whether the clock of an engine advances by itself


class StepEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did, apart from its requests' outcomes."""

    queue: tuple[QueueSample, ...] = ()
    change_began: float | None = None
    change_ended: float | None = None
    moved_tokens: int | None = None
    problem: EngineError | None = None


class WorkloadRun:
    """One workload on one engine under one nonce. `on_request`: called with each request before it is sent.

    `idle_first`: wait until the engine is idle, because it may still compute requests whose clients have left
    (llama.cpp finishes their prompts), and count them.
    """

    def __init__(
        self,
        engine: Engine,
        workload: Workload,
        nonce: str,
        contents: dict[str, AdapterFiles],
        folder: Path,
        *,
        on_request: Callable[[Outcome], None] = lambda _: None,
        stall_seconds: float = STALL_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        ledger: EventLedger | None = None,
        scored: bool = False,
        versions: Versions | None = None,
        policy: WeightPolicy = WeightPolicy.ON_RESET,
        next_engine: Callable[[EngineChange], Engine] | None = None,
        idle_first: bool = False,
    ) -> None:
        load_performers()
        self.engine, self.workload, self.nonce = engine, workload, nonce
        self.on_request = on_request
        self.stall_seconds, self.settle_seconds = stall_seconds, settle_seconds
        self.ledger, self.batches = ledger or EventLedger(), RunBatches()
        self.policy = policy
        self.next_engine, self.lives = next_engine, lives_of(workload)
        self.idle_first = idle_first
        self.adapters = AdapterNames(engine, nonce, contents, folder)
        self.changes = Changes(
            engine,
            clock=self.clock,
            make=lambda change: perform(change, self),
            make_apart=lambda change, sides: perform_apart(change, self, sides),
        )
        self.weights = ServedWeights(
            engine, versions or {}, folder, nonce, clock=self.clock, on_clear=self.changes.resets.append
        )
        self.step_log = StepLog(engine, nonce)
        self.requests = RunRequests(engine, nonce, self.adapters, self.weights, scored=scored)
        self.requests.tagged |= self.step_log.recorded is not None
        self.requests.use_difference(self.lives.pop(0))
        self.current = 0  # the number of the step that is run
        self.stalled: QueueSample | None = None
        self.lost: str | None = None
        self.baseline = self.last_metrics = Metrics()
        self.began = engine.clock()

    def history(self) -> History:
        """Run every step, until the end or until the engine is lost, unload all adapters and return the history."""
        if self.idle_first:
            self.idle(0)
        self.empty_first()
        self.ledger.follow(self.take_events().batches)  # published outside of any run
        self.baseline = self.scrape()
        self.last_metrics = self.baseline.since(self.baseline)
        try:
            steps = self.steps()
        except RequestOverdue:
            self.undo_changes()
            raise
        self.unless_lost(self.requests.close_sessions, None)
        self.unless_lost(self.adapters.clean_up, None)
        self.restore_weights()
        events = self.events()
        unread: tuple[WrongRead, ...] = ()
        wrong_reads = self.unless_lost(self.engine.wrong_reads, unread)
        self.step_log.collect(self.engine, began=self.began)
        outcomes = self.requests.outcomes
        return History(
            workload=self.workload,
            nonce=self.nonce,
            shape=self.engine.shape,
            outcomes=tuple(outcomes[key] for key in sorted(outcomes)),
            steps=steps,
            contents={name: files.digest for name, files in self.adapters.contents.items()},
            resets=tuple(self.changes.resets),
            side_resets=tuple(self.changes.side_resets),
            side_restarts=tuple(self.changes.side_restarts),
            half_changed=tuple(self.changes.half_changed),
            weights={name: files.digest for name, files in self.weights.versions.items() if name != START_WEIGHTS},
            updates=tuple(self.weights.updates),
            start_checksum=self.weights.start_checksum,
            pauses=tuple(self.weights.pauses),
            policy=self.policy,
            events=events,
            wrong_reads=wrong_reads,
            engine_steps=self.step_log.steps(),
            stalled=self.stalled,
            engine_lost=self.lost,
            log_tail=self.engine.log_tail() if self.lost is not None else "",
        )

    def undo_changes(self) -> None:
        """Undo what this run has changed in the engine, as far as the time allows, after a request was cut off."""
        for undo in (self.requests.close_sessions, self.adapters.clean_up, self.weights.clean_up):
            with contextlib.suppress(EngineError, RequestOverdue):
                undo()

    def restore_weights(self) -> None:
        """Load the weights of the start again. An engine that refuses is lost: its next run would blame old weights."""
        if self.lost is not None:
            return
        try:
            self.weights.clean_up()
        except EngineError as problem:
            self.lost = f"the engine could not return to the weights with which it was started: {problem}"
            self.engine.stop()

    def empty_first(self) -> None:
        """Reset the cache of an engine that drops all blocks at once when it is full.

        Otherwise, blocks of earlier runs could fill it.
        """
        resets = self.engine.capabilities[Capability.CACHE_RESET].present is True
        if resets and self.engine.shape.drops_all_below is not None:
            self.unless_lost(self.engine.reset_cache, False)

    def steps(self) -> tuple[StepRecord, ...]:
        """Run the steps in order, until the end or until the engine is lost."""
        records, first_request = [], 0
        for number, step in enumerate(self.workload.steps):
            records.append(self.step(number, step, first_request))
            first_request += len(step.requests)
            if self.lost is not None:
                break
        return tuple(records)

    def step(self, number: int, step: Step, first_request: int) -> StepRecord:
        """Run one step and return its record, with the metrics before and after it."""
        self.current, before, started = number, self.last_metrics, self.clock()
        try:
            effects = self.effects_of(number, step, first_request)
        except EngineError as problem:
            effects = StepEffects(problem=problem)
        if effects.problem is not None:
            self.note_loss(effects.problem)
        finished = self.clock()
        if isinstance(step, Burst):  # no other step changes a counter
            self.last_metrics = self.metrics()
        return StepRecord(
            step=number,
            started=started,
            finished=finished,
            before=before,
            after=self.last_metrics,
            queue=effects.queue,
            change_began=effects.change_began,
            change_ended=effects.change_ended,
            moved_tokens=effects.moved_tokens,
            error=None if effects.problem is None else str(effects.problem),
            silent=isinstance(effects.problem, EngineSilent),
        )

    def effects_of(self, number: int, step: Step, first_request: int) -> StepEffects:
        """Execute a step. Raises EngineError."""
        if isinstance(step, Burst):
            return self.burst(number, step, first_request)
        return StepEffects(moved_tokens=perform(step, self))

    def burst(self, number: int, step: Burst, first_request: int) -> StepEffects:
        """Send all requests, make the change during them if the step has one, and wait for all."""
        change = self.changes.during(step.meanwhile) if step.meanwhile else None
        plans = [self.requests.plan(first_request + i, number, request) for i, request in enumerate(step.requests)]
        arrivals = [self.requests.wire(plan, request) for plan, request in zip(plans, step.requests, strict=True)]
        for plan in plans:
            self.on_request(plan)
        monitor = BurstMonitor(
            step,
            self.engine,
            change=change,
            clock=self.clock,
            metrics=self.metrics,
            stall_seconds=self.stall_seconds,
        )
        served = self.engine.serve(arrivals, monitor.on_token, monitor.between)
        if monitor.stalled is not None:
            self.stalled = monitor.stalled
            self.lost = f"no progress for {self.stall_seconds:.0f} s with requests in flight ({monitor.stalled})"
        elif change is not None:
            change.complete()  # the first request ended before it had enough tokens, or all ended between two changes
        for plan, one in zip(plans, served, strict=True):
            self.record(plan, one, change)
        queue = tuple(monitor.queue)
        if change is None or not change.tried:
            return StepEffects(queue=queue)
        return StepEffects(queue=queue, change_began=change.began, change_ended=change.ended, problem=change.problem)

    def record(self, plan: Outcome, served: Served, change: Change | None) -> None:
        """Record the outcome of a request."""
        ended = outcome(plan, served, began=self.began, stall=self.lost if self.stalled is not None else None)
        if isinstance(served.result, EngineError):
            self.note_loss(served.result)
        widened = self.requests.widened(ended, change)
        self.requests.outcomes[widened.request] = widened

    def restart(self) -> None:
        """Replace the engine by the next one over its storage. Counters and times continue.

        An engine that does not start over what another one left is lost. Raises RequestRefused without a next engine.
        """
        if self.next_engine is None:
            raise RequestRefused(501, self.engine.capabilities[Capability.PERSISTENT_KV].evidence)
        self.batches.add(self.take_events(), began=self.began)
        elapsed, known, difference = self.clock(), self.last_metrics, self.lives.pop(0)
        self.batches.note_restart(elapsed)
        self.step_log.collect(self.engine, began=self.began)
        try:
            self.engine = self.next_engine(difference)
        except EngineStartError as problem:
            raise EngineDied(f"the engine does not start over the storage of the one before: {problem}") from problem
        self.requests.use_difference(difference)
        self.adapters.engine = self.requests.engine = self.weights.engine = self.changes.engine = self.engine
        self.adapters.slots.clear()
        self.began = self.engine.clock() - elapsed
        self.baseline = self.scrape().since(known)

    def idle(self, ms: int) -> None:
        """Wait `ms` milliseconds, then until the engine reports that it is empty, at most for `settle_seconds`.

        Do not wait if the engine's clock does not advance by itself: such an engine does nothing meanwhile, except that
        it notices that a restarted server answers.
        """
        began = self.clock()
        time.sleep(BLINK_SECONDS)
        if self.clock() > began or self.changes.side_restarts:
            time.sleep(ms / 1000)
        for _ in range(SETTLE_POLLS):
            self.last_metrics = self.metrics()
            holds = self.last_metrics.running or self.last_metrics.waiting or self.last_metrics.pool_usage
            if not holds or self.clock() == began:
                return
            time.sleep(self.settle_seconds / SETTLE_POLLS)

    def continue_counters(self) -> None:
        """Let the counters go on from where they were: those of an engine that was started again begin anew."""
        self.baseline = self.scrape().since(self.last_metrics)

    def metrics(self) -> Metrics:
        """Return the engine's counters since this run began."""
        return self.scrape().since(self.baseline)

    def scrape(self) -> Metrics:
        """Return the engine's counters; all are None if it is lost."""
        return self.unless_lost(self.engine.metrics, Metrics())

    def take_events(self) -> Published:
        """Return what the engine has published since the last call; nothing if it is lost."""
        return self.unless_lost(self.engine.take_events, Published())

    def events(self) -> RunEvents | None:
        """Return what was published during this run. Return None without KV events, or if the engine is lost, because
        then the events are incomplete."""
        if self.engine.capabilities[Capability.KV_EVENTS].present is not True:
            return None
        published = self.take_events()
        if self.lost is not None:
            return None
        self.batches.add(published, began=self.began)
        return self.ledger.record(published, self.requests.outcomes.values(), self.batches)

    def unless_lost(self, call: Callable[[], Reported], nothing: Reported) -> Reported:
        """Call the engine. Return `nothing` if it is lost or fails."""
        if self.lost is not None:
            return nothing
        try:
            return call()
        except EngineError as problem:
            self.note_loss(problem)
            return nothing

    def note_loss(self, problem: EngineError) -> None:
        """Record that the engine is lost, if it has terminated or no longer answers."""
        if isinstance(problem, EngineDied | EngineSilent) and self.lost is None:
            self.lost = str(problem)

    def clock(self) -> float:
        """Return the seconds since the run began."""
        return round(self.engine.clock() - self.began, 6)
