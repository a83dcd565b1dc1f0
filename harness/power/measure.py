"""Measures faults and the unmodified engine, and stores each result at once, so that a measurement can be resumed."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from coldproof.adapters.registry import catalogue, measured_engine
from coldproof.adapters.spec.fault import Fault
from coldproof.harness.option_table import option_words
from coldproof.harness.options import PROFILES, UsageError
from coldproof.harness.power import field_scripts, suite_run
from coldproof.harness.power.forked_run import RunTimedOut, run_in_fork
from coldproof.harness.power.stored import stored_measurement
from coldproof.harness.schema.power import FaultRow, FieldReport, Outcome, PowerResults, SuiteRun
from coldproof.harness.session.environment import coldproof_version
from coldproof.reports.files.own_folder import claim
from coldproof.reports.format.text import duration

LITERAL_SECONDS = 600
RUN_BYTES = 4 * 2**30  # memory that one run's engines may need
Measured = TypeVar("Measured", FaultRow, SuiteRun)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a measurement: worker, seed and budgets of every run, and the folder for results and logs."""

    worker: str
    seed: int
    aimed_seconds: float  # for drawing examples in a run of the requirements about a fault
    wide_seconds: float  # the same in a run of all requirements
    out: Path
    # When to run all requirements: "always", "missed" (if the aimed run missed the fault) or "never". The name of a
    # profile: in place of both runs, what that profile runs in process, up to the first confirmed violation.
    wide: str = "always"
    scripts: bool = True  # whether to run the scripts of the field reports too
    calibration: Path | None = None  # results.json of the unmodified engine, with its comparison rule
    noise: str | None = None  # noise that is added to all engines' scores
    served: suite_run.Served = suite_run.GENERATED
    guided: bool = False  # whether runs are guided by the states of the engine that they reach

    @property
    def budgets(self) -> dict[str, float]:
        """Return the seconds of drawing for each fault by run."""
        if self.wide in PROFILES:
            plan = suite_run.profile_plan(self.wide, None, worker=self.worker, seed=self.seed)
            return {self.wide: plan.seconds}
        return {"aimed": self.aimed_seconds} | ({"wide": self.wide_seconds} if self.wide != "never" else {})

    def calibrated(self) -> Measurement:
        """Return the measurement with the comparison rule of the unmodified engine, found once for all faults."""
        folder = self.out / "runs" / "calibration"
        found = suite_run.calibrate(
            folder,
            worker=self.worker,
            seed=self.seed,
            noise=self.noise,
            served=self.served,
            budget=self.aimed_seconds,
        )
        return msgspec.structs.replace(self, calibration=found)

    def against(self, ask: suite_run.RunPlan, folder: Path) -> SuiteRun:
        """Run a plan with this measurement's calibration, noise and model."""
        ask = msgspec.structs.replace(
            ask, calibration=self.calibration, noise=self.noise, served=self.served, guided=self.guided
        )
        return suite_run.run(ask, folder)

    def row(self, fault: Fault) -> FaultRow:
        """Return a fault's result, stored or measured now."""
        return self.remembered(fault.name, FaultRow, lambda: self.measured(fault))

    def stored(self, name: str) -> Path:
        """Return the path of a stored result."""
        return self.out / "rows" / f"{name}.json"

    def remembered(self, name: str, kind: type[Measured], measure: Callable[[], Measured]) -> Measured:
        """Return a stored result; if there is none, measure and store it."""
        file = self.stored(name)
        if file.exists():
            return stored_measurement(file, kind)
        result = measure()
        file.parent.mkdir(parents=True, exist_ok=True)
        claim(file).write_bytes(msgspec.json.encode(result))
        return result

    def measured(self, fault: Fault) -> FaultRow:
        """Measure a fault: the requirements about it, then all requirements, then the field scripts."""
        aimed = wide = None
        scripts: list[FieldReport] = []
        if not fault.equivalent:
            folder = self.out / "runs" / fault.name
            aimed, wide = self.aimed_and_wide(fault, folder)
            scripts = self.literally(fault.name, folder / "literal")
        return FaultRow(
            name=fault.name,
            mechanism=fault.mechanism,
            summary=fault.summary,
            stands_for=fault.stands_for,
            about=list(fault.about),
            rare=fault.rare,
            equivalent=fault.equivalent,
            outcome=fault_outcome(fault, [run for run in (aimed, wide) if run is not None]),
            aimed=aimed,
            wide=wide,
            literal=scripts,
        )

    def aimed_and_wide(self, fault: Fault, folder: Path) -> tuple[SuiteRun | None, SuiteRun | None]:
        """Run the suites against a fault; None for a run that this measurement does not make."""
        if self.wide in PROFILES:
            ask = suite_run.profile_plan(self.wide, fault, worker=self.worker, seed=self.seed)
            return None, self.against(ask, folder / self.wide)
        ask = suite_run.aimed_plan(fault, worker=self.worker, seconds=self.aimed_seconds, seed=self.seed)
        aimed = self.against(ask, folder / "aimed")
        missed = not any(detection.requirement in fault.about for detection in aimed.effects)
        if self.wide == "always" or (self.wide == "missed" and missed):
            ask = suite_run.wide_plan(fault, worker=self.worker, seconds=self.wide_seconds, seed=self.seed)
            return aimed, self.against(ask, folder / "wide")
        return aimed, None

    def literally(self, fault: str | None, folder: Path) -> list[FieldReport]:
        """Run the field scripts. Return no results if they are disabled or time out."""
        if not self.scripts:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        words = option_words(worker=self.worker, fault=fault, **msgspec.structs.asdict(self.served))
        with contextlib.suppress(RunTimedOut):
            run_in_fork(LITERAL_SECONDS, field_scripts.main, [*words, "--out", str(folder)], folder)
        written = folder / "literal.json"
        return stored_measurement(written, list[FieldReport]) if written.exists() else []

    def clean(self, faults: list[Fault], number: int) -> SuiteRun:
        """Run the suites on the unmodified engine, with its own seed and the budgets of a fault."""
        seconds, seed = self.aimed_seconds + self.wide_seconds, self.seed + number
        if self.wide in PROFILES:
            ask = suite_run.profile_plan(self.wide, None, worker=self.worker, seed=seed)
        else:
            ask = suite_run.clean_plan(faults, worker=self.worker, seconds=seconds, seed=seed)
        folder = self.out / "runs" / f"clean-{number}"
        ask = msgspec.structs.replace(ask, served=self.served, guided=self.guided)
        return self.remembered(f"(clean {number})", SuiteRun, lambda: suite_run.run(ask, folder))


def fault_outcome(fault: Fault, runs: list[SuiteRun]) -> Outcome:
    """Return the outcome of a fault from its runs."""
    if fault.equivalent:
        return Outcome.EQUIVALENT
    if any(run.effects for run in runs):
        return Outcome.CAUGHT
    if any(run.problem for run in runs):
        return Outcome.NO_ENGINE
    return Outcome.SURVIVED if any(run.acted for run in runs) else Outcome.NEVER_ACTED


def select_faults(names: str | None, worker: str) -> list[Fault]:
    """Return the faults with these names or mechanisms that fit the worker.

    Raises UsageError for an unknown name, and if none fits: nothing would be measured.
    """
    faults = catalogue(measured_engine().name).faults
    fitting = [fault for fault in faults.values() if worker in fault.workers and suite_run.fault_cells(fault, worker)]
    if names is None:
        return fitting
    wanted = names.split(",")
    known = {fault.name for fault in faults.values()} | {fault.mechanism for fault in faults.values()}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(f"unknown fault {unknown[0]!r}: `coldproof faults` prints them")
    chosen = [fault for fault in fitting if fault.name in wanted or fault.mechanism in wanted]
    if not chosen:
        raise UsageError(f"no fault of {names} can be measured with --worker {worker}: choose another worker")
    return chosen


def parallel_runs() -> int:
    """Return how many runs the processors and the memory allow at a time."""
    return max(1, min(os.cpu_count() or 1, psutil.virtual_memory().available // RUN_BYTES))


def measure_power(
    measurement: Measurement,
    faults: list[Fault],
    *,
    clean_runs: int,
    jobs: int | None,
    command: str,
    say: Callable[[str], None],
) -> PowerResults:
    """Measure all faults and the unmodified engine in parallel. After Ctrl-C, return the results so far."""
    started, began = datetime.datetime.now(datetime.UTC), time.monotonic()
    clean: dict[int, SuiteRun] = {}
    rows: dict[str, FaultRow] = {}
    field_scripts: list[FieldReport] = []
    complete = True
    measurement = measurement.calibrated()
    resumed = sum(measurement.stored(fault.name).exists() for fault in faults)  # these rows take no time
    with ThreadPoolExecutor(jobs or parallel_runs()) as pool:
        controls: dict[Future[SuiteRun], int] = {
            pool.submit(measurement.clean, faults, number): number for number in range(1, clean_runs + 1)
        }
        scripts = pool.submit(measurement.literally, None, measurement.out / "runs" / "clean-literal")
        measured: dict[Future[FaultRow], Fault] = {pool.submit(measurement.row, fault): fault for fault in faults}
        try:
            field_scripts = scripts.result()
            for done in as_completed(controls):
                clean[controls[done]] = done.result()
                say(f"unmodified engine, run {controls[done]}: {clean_summary(done.result())}")
            for count, ended in enumerate(as_completed(measured), 1):
                row = ended.result()
                rows[row.name] = row
                left = time_left(time.monotonic() - began, count + len(clean) - resumed, len(faults) - count)
                done_of_all = f"[{count}/{len(faults)}]"
                say(f"{done_of_all} {row.mechanism}: {row.name} {fault_summary(row)}; {left}")
        except KeyboardInterrupt:
            complete = False
            pool.shutdown(wait=False, cancel_futures=True)
    return PowerResults(
        coldproof_version=coldproof_version(),
        started=started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - began, 1),
        complete=complete,
        command=command,
        engine=installed_engine(),
        worker=measurement.worker,
        seed=measurement.seed,
        budgets=measurement.budgets,
        faults=[rows[fault.name] for fault in faults if fault.name in rows],
        clean=[clean[number] for number in sorted(clean)],
        clean_literal=field_scripts,
    )


def time_left(elapsed: float, measured: int, missing: int) -> str:
    """Return how long the missing runs will take at the pace of those measured now; stored ones took no time."""
    return f"about {duration(elapsed / measured * missing)} left" if measured > 0 else "measured before"


def installed_engine() -> str:
    """Return the installed engine package and its version."""
    for package in measured_engine().packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{package} {importlib.metadata.version(package)}"
    return "no engine"


def fault_summary(row: FaultRow) -> str:
    """Return a fault's outcome in one line."""
    first = row.first
    if first is None:
        return row.outcome.value if row.outcome is not Outcome.SURVIVED else "SURVIVED"
    own = "" if row.by_its_own else f" (not by {', '.join(row.about)})"
    return f"detected by {first.requirement} after {first.requests} requests, {duration(first.seconds)}{own}"


def clean_summary(run: SuiteRun) -> str:
    """Return the result of a run on the unmodified engine in one line."""
    violated = ", ".join(d.requirement for d in run.detections)
    problem = f" ({run.problem})" if run.problem else ""
    return (f"FALSE POSITIVE: {violated}" if violated else f"no violation in {run.requests} requests") + problem
