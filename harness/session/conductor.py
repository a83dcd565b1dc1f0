"""One run of the suites: it emits the events, opens the cells one after the other, and writes the reports at the end.

The state of the run is in its events. The object here holds only open resources: log, engines, terminal.
"""

from __future__ import annotations

import contextlib
import datetime
import enum
import functools
import shutil
import threading
import time
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import psutil
import pytest

from coldproof.adapters.common.forked import ForkServerError, stop_imports
from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineError, EngineStartError
from coldproof.adapters.protocol.request_time import RequestOverdue
from coldproof.adapters.registry import CELLS, ENGINES, fault_of, title_of
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.case.known_issues import Waivers, read_known_issues, today
from coldproof.harness.case.load import load_case
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.calibration.calibrate import calibrated_run
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.cell_start import usable_contents
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.models.trained import described_model
from coldproof.harness.judgement.collect import ACTING
from coldproof.harness.judgement.criteria import failing_checks
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.judgement.reach.states import families
from coldproof.harness.judgement.requirement import statement_parts
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.options import QUALIFY, SOAK, Options, UsageError
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.harness.release.run.record import keep_known_issues, qualification
from coldproof.harness.schema.exit_codes import EXIT_HARNESS, EXIT_NOTHING, EXIT_USAGE
from coldproof.harness.session.as_shipped import ShippedReplays
from coldproof.harness.session.budget import GRACE_SECONDS, OUT_OF_TIME, Budget, OutOfTime, ProofTime, RunClock
from coldproof.harness.session.causes.attributor import Attributor
from coldproof.harness.session.environment import coldproof_version
from coldproof.harness.session.layers.processes import LayerProcesses
from coldproof.harness.session.layers.view import LayersView
from coldproof.harness.session.run_reports import RunReports, open_folder, prepare_copy, unwritable
from coldproof.harness.session.selftest.selftest import self_test
from coldproof.harness.session.signals import EndingSignals
from coldproof.harness.session.soak import ResourceMonitor
from coldproof.harness.session.switches import Server, table_of
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.harness.session.trials import RunPlan, TrialRunner, allowed_verdicts
from coldproof.harness.session.user_references import check_known_issues, check_model

CLOSE_SECONDS = 3.0  # after an interrupt; an engine that ignores SIGTERM takes longer, and its guard ends it


class Role(enum.StrEnum):
    """The role of this process in a run. With xdist there are a controller and workers."""

    ALONE = "alone"
    CONTROLLER = "controller"
    WORKER = "worker"


class ConformanceRun:
    """One run, or the part of it that one worker runs."""

    def __init__(self, options: Options, role: Role) -> None:
        """Open the report folder. Raises OSError if it cannot be written, UsageError for it or for bad known issues."""
        self.options, self.role = options, role
        self.issues = read_known_issues(options.known_issues)
        check_known_issues(self.issues)
        check_model(options.model, attached=options.attached)
        if options.calibration is not None:
            calibrated_run(options.calibration)  # refuses another file now; whether it fits the engine shows later
        leads = role is not Role.WORKER
        qualifies = leads and options.profile == QUALIFY
        trained = described_model(options.model)
        self.qualification = qualification(options, trained=trained) if qualifies else None
        # Read the case before an earlier report is moved aside: it may lie in that folder.
        case = load_case(options.replay, follow=True) if options.replay is not None else None
        self.folder, self.kept = open_folder(options.report_dir, leads=leads)
        if leads and options.json is not None:
            prepare_copy(options.json)
        self.log = EventLog(options.report_dir / EVENTS, options.layer)
        self.plan = RunPlan()
        self.reports = RunReports(options, self.log, waivers=self.waivers, qualification=self.qualification)
        asked = options.replay is None or options.known_issues is not None
        self.proof_time = ProofTime(lambda: self.clock, alone=options.prove is not None)
        self.attributor = self.attributor_of(options) if asked else None
        self.trials = TrialRunner(
            options,
            self.log,
            self.plan,
            case=case,
            waivers=self.waivers,
            save_case=self.reports.save_case,
            time=self.proof_time,
            attributor=self.attributor,
        )
        self.shipped = ShippedReplays(options, self.log, save_case=self.reports.save_case)
        self.pool: EnginePool | None = None
        self.layers: LayerProcesses | None = None
        self.open_cells: list[SystemUnderTest] = []
        self.monitor: ResourceMonitor | None = None
        self.suites_began: float | None = None
        self.replays_shipped = False  # of several processes that share the tests, one does
        self.exit_code = 0
        self.signals = EndingSignals(self.release)
        self.log.on_failure = lambda: self.signals.interrupt("a file of the report cannot be written")
        if leads:
            self.emit_start()

    def attributor_of(self, options: Options) -> Attributor:
        """Return what looks for the causes of cases. The import of the engine for its replays is an engine start."""

        def starting() -> AbstractContextManager[None]:
            return contextlib.nullcontext() if self.pool is None else self.pool.start_clock.running()

        return Attributor(options, self.log, time=self.proof_time, starting=starting)

    def emit_start(self) -> None:
        """Emit the facts about the run as a whole."""
        options = self.options
        self.log.emit(
            "run_started",
            version=coldproof_version(),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=options.command,
            profile=options.profile,
            seed=options.seed,
            shard=options.shard,
            layers=options.layers,
            fault=fault_facts(options),
            repairs=[{"name": one.name, "title": one.title, "also": one.also} for one in options.repairs],
            environment=self.reports.environment,
            allowed=allowed_verdicts(options),
            least_shown=options.least_shown,
        )
        self.log.emit("states", families=families())
        crossings = ENGINES[options.engine].crossings
        if crossings is not None:
            # All cells that a run may open: the process of a run of several layers does not know which ones do.
            named = (CELLS[name] for name in options.cells if name in CELLS)
            every = (*ENGINES[options.engine].cells, *crossings.cells(options.profile), *named)
            values = {cell.name: crossings.values_of(cell) for cell in every}
            acts = {name: ACTING[feature] for name, feature in crossings.features().items()}
            self.log.emit("pairs", possible=crossings.possible_pairs(), cells=values, acts=acts)
        if self.qualification is not None:
            keep_known_issues(options)
            self.log.emit("qualification", qualification=self.qualification)

    def attach_terminal(self, reporter: Any, capture: Any) -> Terminal | None:
        """Show progress on pytest's terminal reporter. Returns None without one."""
        if reporter is None:
            return None
        self.reports.terminal = Terminal(reporter, capture)
        self.log.subscribe(self.reports.terminal.on_event)
        if self.kept is not None:
            self.log.emit("phase", words=f"keeping the earlier report in {self.kept}")
        return self.reports.terminal

    def announce(self, trial: Trial, *, area: str) -> None:
        """Emit that a requirement will be tested, so that the report lists it even if the run ends early."""
        self.plan.announced += 1
        requirement = trial.requirement
        self.log.emit(
            "requirement",
            id=requirement.id,
            title=requirement.title,
            statement=trial.statement,
            parts=statement_parts(trial.statement),
            shows=(*requirement.shows, *requirement.shows_where.values()),
            upstream=requirement.upstream,
            fails_on=failing_checks(requirement),
            area=area,
            cell=trial.cell,
            test=trial.test,
        )

    def waivers(self, version: str | None) -> Waivers:
        """Return the known issues for an engine version, without those that repairs remove."""
        options = self.options
        return Waivers(self.issues, version=version, today=today(), worker=options.worker, repaired=options.repaired)

    def begin(self) -> None:
        """Run the self-test, then prepare model and adapters. Ends the run with one line if either fails."""
        self.log.emit("phase", words="self-test of the detector")
        try:
            rows = self_test()
        except OSError as problem:
            self.stop(f"cannot write the files of the self-test: {problem}")
        self.log.emit("selftest", rows=rows)
        if not all(row.caught for row in rows):
            missed = next(row.planted for row in rows if not row.caught)
            self.stop(f"RUN INVALID: the self-test of the detector gave a wrong result for the injected bug '{missed}'")
        if self.replays_shipped:
            self.shipped.run({(cell, one.id) for cell, one in self.plan.expected})
        try:
            pool = self.pool = EnginePool(self.options, self.log)
            pool.time_left = self.proof_time.until_cut
            pool.prepare()
            if self.options.profile == SOAK:
                self.monitor = ResourceMonitor(self.log, lambda: list(pool.processes), self.options.seconds)
                self.monitor.start()
        except UsageError as problem:
            self.stop(str(problem), usage=True)
        except OSError as problem:
            self.stop(f"cannot write adapter files: {problem}")

    def run_layers(self, words: list[str]) -> None:
        """Run every layer in a process of its own. `words`: pytest's arguments. A layer that failed ends the run."""
        view = LayersView(self.reports.terminal, self.options.layers) if self.reports.terminal is not None else None
        problems: dict[str, str] = {}

        def on_event(event: dict[str, Any]) -> None:
            if event["event"] == "problem":
                problems.setdefault(event["layer"], event["message"])
            if view is not None:
                view.on_event(event)

        self.log.emit("phase", words="importing the engines")
        try:
            self.layers = LayerProcesses(self.options.layers, words, self.options.report_dir)
        except ForkServerError as problem:
            self.stop(f"the layers cannot be started: {problem}")
        ends = self.layers.follow(on_event)
        if view is not None:
            view.write()
        for end in ends:
            if end.code not in (0, EXIT_NOTHING) and end.layer not in problems:
                problems[end.layer] = f"layer '{end.layer}' ended with exit code {end.code}: {end.said} (see {end.log})"
                self.log.emit("problem", message=problems[end.layer], usage=end.code == EXIT_USAGE)
        if problems:
            pytest.exit(f"coldproof: {next(iter(problems.values()))}", returncode=EXIT_HARNESS)

    def stop(self, message: str, *, usage: bool = False) -> NoReturn:
        """End the whole run with one line. The report shows how far the run came."""
        self.log.emit("problem", message=message, usage=usage)
        pytest.exit(f"coldproof: {redacted(message)}", returncode=EXIT_HARNESS)

    def open_cell(self, cell: Cell) -> SystemUnderTest | None:
        """Start a cell's engines and calibrate. With only one cell, a failure ends the run. Raises OutOfTime.

        Return None for a second visit for which no time is left.
        """
        if self.pool is None:
            raise RuntimeError("the run has not begun")
        schedule = self.trials.schedule
        again = schedule.in_rounds and cell.name in schedule.starts  # a worker of xdist may open a cell twice, too
        if again and not self.is_time_for(cell.name):
            return None
        if not self.clock.left_for_drawing() and not again:
            raise OutOfTime(OUT_OF_TIME)
        before = self.pool.start_clock.seconds()
        self.log.emit("phase", words=f"starting the engine for cell '{cell.name}' ({cell.about})")
        try:
            engines = CellEngines.open(self.pool, cell, on_start=lambda engine: self.show_switches(engine, cell))
            sut = SystemUnderTest(engines, self.budget, self.proof_time.left)
        except UsageError as problem:
            self.stop(str(problem), usage=True)
        except (EngineError, OracleError, RequestOverdue) as problem:
            if len(self.options.cells) <= 1:
                self.stop(str(problem))
            raise EngineStartError(str(problem)) from problem
        self.open_cells.append(sut)
        took = 0.0 if again else engines.calibration_seconds
        schedule.opened(cell.name, self.pool.start_clock.seconds() - before, calibration=took)
        if again:
            return sut
        self.log.emit(
            "engine",
            engine=engine_facts(engines),
            cell=cell.name,
            contents=len(engines.contents),
            versions=len(sut.limits.versions),
            digests={name: files.digest for name, files in engines.contents.items()},
            shape=engines.engine.shape,
        )
        engines.emit_calibration()
        if self.suites_began is None:
            self.suites_began = time.monotonic()
        self.order_standby(engines)
        return sut

    def is_time_for(self, cell: str) -> bool:
        """Return whether time is left for what the tests of a cell wait for."""
        schedule, drawing = self.trials.schedule, min(self.budget.remaining(), self.clock.left_for_drawing())
        return (schedule.proofs(cell) > 0 and not self.proof_time.is_over()) or (
            schedule.has_more(cell) and drawing > 0
        )

    def show_switches(self, engine: CheckedEngine, cell: Cell) -> None:
        """Emit what an attached server lets this run test, and what each switch that it lacks would add."""
        if self.pool is None or not self.options.attached:
            return
        server = Server.of(
            engine,
            contents=len(usable_contents(self.pool, cell, engine)),
            versions=len(self.pool.files.versions_of(cell)),
            workload=self.pool.profile.tokens,
        )
        requirements = [one for _, one in self.plan.expected]
        self.log.emit("switches", switches=table_of(self.options.engine, engine.config, server, requirements))

    def order_standby(self, engines: CellEngines) -> None:
        """Start the fresh engines early with which failures that are expected in this cell will be confirmed."""
        here = self.plan.in_cell(engines.cell.name)
        confirmed = {one.id: one for one in here if not self.options.waives_at_once(one.suits)}
        mixtures_differ = not all(engines.calibration.mixtures.values()) and engines.oracle_engine is not None
        if mixtures_differ and any(one.without_cache for one in confirmed.values()):
            engines.standby.order(caching=False)
        waivers = self.waivers(engines.engine.version)
        may_occur = any(waivers.in_force(issue) and issue.requirement in confirmed for issue in self.issues)
        if may_occur and not engines.ended:
            engines.standby.order(caching=True)

    def close_cell(self, sut: SystemUnderTest) -> None:
        """Stop a cell's engines before those of the next cell start. After an interrupt they have already stopped."""
        if self.pool is not None:
            self.open_cells.remove(sut)
            sut.engines.close()

    @functools.cached_property
    def budget(self) -> Budget:
        """Return the budget for drawing examples."""
        clock = self.clock
        budget = Budget(
            self.options.seconds,
            self.plan.weight(),
            clock.left_for_drawing,
            of_budget=clock.left_of_budget,
            grace=0.0 if clock.strict else GRACE_SECONDS,
        )
        schedule = self.trials.schedule
        budget.proofs_expected = lambda part: self.proof_time.expected(schedule.proofs() * part)
        if schedule.quick:
            self.proof_time.opening = schedule.opening
        budget.openings_expected = lambda: schedule.openings_expected(len(self.options.cells))
        return budget

    @functools.cached_property
    def clock(self) -> RunClock:
        """Return the clock of the run, which begins when the first cell is opened."""
        # To attach is no start: a server that is slow or wrong gets no time for it.
        starts = self.pool.start_clock.seconds if self.pool is not None and not self.options.attached else lambda: 0.0
        return RunClock(self.options.seconds, strict=self.options.keeps_budget, starts=starts)

    def release(self) -> None:
        """Tell every engine and worker of this run to end, without waiting for them."""
        stop_imports()
        self.shipped.stop()
        if self.attributor is not None:
            self.attributor.stop()
        if self.pool is not None:
            self.pool.closing = True
            for process in list(self.pool.processes):
                process.request_stop()
        if self.layers is not None:
            self.layers.terminate()
        elif self.role is Role.CONTROLLER:  # its only children are the workers
            for worker in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    worker.terminate()

    def finish(self, *, interrupted: bool) -> int:
        """Stop engines, write the reports, and return the exit code."""
        self.signals.finishing()
        interrupted = interrupted or self.signals.received is not None
        self.close(interrupted=interrupted)
        if self.role is Role.WORKER:
            self.exit_code = EXIT_HARNESS if self.log.failure is not None else 0
        else:
            self.exit_code = self.reports.finish(interrupted=interrupted)
        self.folder.close()
        return self.exit_code

    def close(self, *, interrupted: bool) -> None:
        """Stop the engines, and emit the times and the number of engine starts."""
        if self.monitor is not None:
            self.monitor.stop()
        if self.log.failure is not None:
            self.log.emit("problem", message=unwritable(self.log.failure), usage=False)
        elif interrupted and (self.pool is not None or self.role is not Role.WORKER):
            self.log.emit("problem", message="the run was interrupted", usage=False)
        self.trials.conclude_waiting()
        if self.pool is None:
            return
        pool, self.pool = self.pool, None
        if self.options.fault is not None:
            self.log.emit("fault", acted=pool.fault_acted())
        for sut in self.open_cells:
            sut.engines.cancel_questions()
        if interrupted:
            close_with_timeout(pool)
        else:
            pool.close()
        if self.suites_began is not None:
            self.log.emit(
                "measured",
                suite_seconds=round(time.monotonic() - self.suites_began, 3),
                busy_seconds=round(sum(e.busy_seconds for e in pool.tested), 3),
                engine_starts=pool.starts,
            )


def close_with_timeout(pool: EnginePool) -> None:
    """Close the pool, but wait only CLOSE_SECONDS: the guard ends an engine that does not stop."""
    closing = threading.Thread(target=pool.close, name="closing", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    shutil.rmtree(pool.workspace.scratch, ignore_errors=True)


def fault_facts(options: Options) -> dict[str, str] | None:
    """Return the facts about the injected fault for the report; None without one."""
    fault = fault_of(options.engine, options.fault) if options.fault is not None else None
    return None if fault is None else {"name": fault.name, "summary": fault.summary, "stands_for": fault.stands_for}


def engine_facts(engines: CellEngines) -> dict[str, object]:
    """Return the `engine` field of results.json."""
    engine = engines.engine
    return {
        "name": title_of(engine.name),
        "version": engine.version,
        "adapter": engine.name,
        "worker": engines.pool.options.worker,
        "config": dict(engine.config),
        "capabilities": {
            c.value: {"present": s.present, "evidence": s.evidence} for c, s in engine.capabilities.items()
        },
        "weight_promise": str(engines.promise),
    }
