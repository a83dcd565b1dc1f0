"""Measures the injected faults on an engine with noisy scores: which are detected, and how large their deviations are.

Each fault is tested by the requirements about it, as in `coldproof.harness.power`, in random order: the results so far
are a fair sample of all faults.

A run stops as soon as enough examples fail: whether the fault is detected is known by then. Minimising and confirming a
counterexample would take ten times as long. Requests to an engine without a fault are counted by the same criterion, a
finding of the judge, so that both sides of the curve are comparable.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.adapters.spec.fault import Fault
from coldproof.harness.event_log import CONFIRMING
from coldproof.harness.judgement.checkers.noise_tolerance import (
    MATCHED,
    beyond_chance,
    excess,
    measure_deviation,
    too_short_or_long,
)
from coldproof.harness.judgement.checkers.tokens import closest
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.power import measure, suite_run
from coldproof.harness.power.stored import stored_measurement
from coldproof.harness.release.bundle.run_folder import Stored
from coldproof.harness.schema.noise import FaultLevel, NoisyFault
from coldproof.harness.schema.power import Outcome, SuiteRun
from coldproof.harness.schema.stored_files import read_lines
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.conductor import ConformanceRun
from coldproof.harness.session.plugin import RUN
from coldproof.reports.assemble.assemble import EXAMPLE
from coldproof.reports.files.own_folder import claim

MAX_FAILED_EXAMPLES = 3  # not 1, because the first failing example need not have the largest deviation
EXIT_FOUND = 86  # the exit code of a run that was stopped early
NO_NOISE = "none"
MAX_EXCESS = 1e6  # in units of the tolerance; stands for a missing score, or for a tolerance of zero


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One level of noise to measure. noise=None: deterministic scores. `budget`: seconds of drawing for each fault."""

    worker: str
    noise: str | None
    budget: float
    seed: int
    served: suite_run.Served = suite_run.GENERATED

    @property
    def name(self) -> str:
        """The name of its folder."""
        return "-".join(filter(None, (self.worker, self.words.replace(":", "-"), self.served.slug)))

    @property
    def words(self) -> str:
        """The noise as text."""
        return self.noise or NO_NOISE


class NoisyRun(msgspec.Struct):
    """What the examples of a run show.

    `max_deviation`: the largest deviation of an answer, in units of the tolerance. `needs_none`: whether there is a
    finding that needs no threshold. `sentence`, `by` and `requests`: the first finding, its requirement, and the number
    of requests up to it.
    """

    max_deviation: float = 0.0
    needs_none: bool = False
    sentence: str = ""
    by: str = ""
    requests: int = 0

    def add(self, stored: Stored) -> None:
        """Add one example."""
        self.max_deviation = max([self.max_deviation, *deviations(stored)])
        self.needs_none = self.needs_none or any(needs_no_threshold(stored, found) for found in stored.findings)
        self.requests += 0 if self.sentence else len(stored.history.outcomes)
        if stored.findings and not self.sentence:
            self.sentence, self.by = stored.findings[0].sentence, stored.requirement


def measure_all(
    level: Level, faults: list[Fault], *, out: Path, say: Callable[[str], None], missed: bool = False
) -> FaultLevel:
    """Measure every fault that has no result yet. If `missed`, measure undetected faults again. Return all results."""
    folder = out / "runs" / f"calibration-{level.name}"
    calibration = suite_run.calibrate(
        folder,
        worker=level.worker,
        seed=level.seed,
        noise=level.noise,
        served=level.served,
        budget=level.budget,
    )
    counted = [fault for fault in faults if not fault.equivalent]
    shuffled = random.Random(level.seed).sample(counted, len(counted))
    for number, fault in enumerate(shuffled, 1):
        file = row_path(level, fault, out)
        if not file.exists() or (missed and not stored_measurement(file, NoisyFault).caught):
            found = measure_fault(level, fault, calibration)
            file.parent.mkdir(parents=True, exist_ok=True)
            claim(file).write_bytes(msgspec.json.encode(found))
            say(f"[{number}/{len(counted)}] {level.name}: {fault.name} {row_summary(found)}")
    return measured_so_far(level, faults, out)


def measured_so_far(level: Level, faults: list[Fault], out: Path) -> FaultLevel:
    """Return the stored results of these faults."""
    counted = [fault for fault in faults if not fault.equivalent]
    files = [row_path(level, fault, out) for fault in counted]
    rows = [stored_measurement(file, NoisyFault) for file in files if file.exists()]
    noise = ", ".join(filter(None, (level.words, level.served.slug)))
    return FaultLevel(worker=level.worker, noise=noise, of=len(counted), faults=rows, budget=level.budget)


def row_path(level: Level, fault: Fault, out: Path) -> Path:
    """Return the path of a fault's stored result."""
    return out / "faults" / level.name / f"{fault.name}.json"


def measure_fault(level: Level, fault: Fault, calibration: Path | None) -> NoisyFault:
    """Run the requirements about a fault on the engine with that fault. Remove the run's files."""
    scratch = ScratchFolder()
    folder = scratch.path / fault.name
    ask = suite_run.aimed_plan(fault, worker=level.worker, seconds=level.budget, seed=level.seed)
    ask = msgspec.structs.replace(
        ask, noise=level.noise, calibration=calibration, profile=suite_run.WIDE_PROFILE, served=level.served
    )
    try:
        run = suite_run.run(ask, folder, pytest_main, stopped=EXIT_FOUND)
        events = folder / "report" / "events.ndjson"
        noisy_run = read_examples(events) if events.exists() else NoisyRun()
    finally:
        scratch.remove()
    return fault_row(fault, run, noisy_run)


class EarlyStop:
    """A pytest plugin that watches the run's events."""

    def __init__(self) -> None:
        self.failed = 0
        self.subscribed: set[int] = set()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Subscribe to the events of the run."""
        run = item.config.stash.get(RUN, None)
        if run is not None and id(run) not in self.subscribed:
            self.subscribed.add(id(run))
            run.log.subscribe(lambda kind, fields: self.on_event(run, kind, fields))

    def on_event(self, run: ConformanceRun, kind: str, fields: dict[str, Any]) -> None:
        """End the process once enough examples failed. All events up to then are written completely."""
        self.failed += kind == "example" and bool(fields["findings"])
        confirming = kind == "phase" and fields.get("stage") == CONFIRMING
        if self.failed >= MAX_FAILED_EXAMPLES or (self.failed and confirming):
            if run.pool is not None:
                shutil.rmtree(run.pool.workspace.scratch, ignore_errors=True)
            os._exit(EXIT_FOUND)


def pytest_main(words: list[str]) -> int:
    """Run pytest to its end, or until enough examples failed. Return the exit code."""
    return int(pytest.main(words, plugins=[EarlyStop()]))


def fault_row(fault: Fault, run: SuiteRun, noisy_run: NoisyRun) -> NoisyFault:
    """Return a fault's result. It is detected if the judge has a finding about an answer, a count or an event."""
    outcome = Outcome.CAUGHT if noisy_run.sentence else measure.fault_outcome(fault, [run])
    return NoisyFault(
        name=fault.name,
        mechanism=fault.mechanism,
        outcome=outcome.value,
        caught=outcome is Outcome.CAUGHT,
        acted=run.acted or outcome is Outcome.CAUGHT,
        needs_no_threshold=noisy_run.needs_none,
        excess=round(min(MAX_EXCESS, noisy_run.max_deviation), 4),
        by=noisy_run.by,
        requests=noisy_run.requests,
        sentence=noisy_run.sentence or run.problem,
    )


def read_examples(events: Path) -> NoisyRun:
    """Return what the examples of a run show."""
    found = NoisyRun()
    for line in read_lines(events):
        if line.startswith(EXAMPLE) and line.endswith(b"\n"):  # a run that was ended leaves half a line
            found.add(msgspec.json.decode(line, type=Stored))
    return found


def deviations(stored: Stored) -> Iterator[float]:
    """Yield the deviation of each scored answer, in units of the tolerance."""
    band = stored.rule.band
    if band is not None:
        for outcome in comparable_outcomes(stored.history):
            one = measure_deviation(stored.history, outcome, dict(stored.answers), band)
            if one is not None:
                yield excess(one, band)


def needs_no_threshold(stored: Stored, found: Finding) -> bool:
    """Return whether a finding holds at any level of noise: by counts, ends, lengths, or a positive match."""
    band = stored.rule.band
    if found.checker != "tokens" or band is None:
        return found.checker != "response options" or found.failure_class is FailureClass.API
    outcome = next(o for o in comparable_outcomes(stored.history) if o.request == found.request)
    answers = dict(stored.answers)
    one = measure_deviation(stored.history, outcome, answers, band)
    if one is None:
        return False
    matched = found.failure_class in MATCHED
    return too_short_or_long(outcome, closest(outcome, answers).ids) or (matched and beyond_chance(one, band))


def row_summary(found: NoisyFault) -> str:
    """Return a fault's result in one line."""
    how = "needs no threshold" if found.needs_no_threshold else f"max deviation {found.excess:.3g} x tolerance"
    return f"{'detected' if found.caught else found.outcome.upper()} by {found.by or 'nothing'}; {how}"
