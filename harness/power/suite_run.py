"""Plans the runs for a fault, runs the suites once in a separate process, and reads what they detected."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.registry import CELLS, ENGINES, measured_engine
from coldproof.adapters.spec.fault import Fault
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.option_table import option_words
from coldproof.harness.options import FINGERPRINT, OFF, PROFILES, SMOKE
from coldproof.harness.power.forked_run import RunTimedOut, run_in_fork
from coldproof.harness.release.requirements.suites import declared
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_NOT_SHOWN, EXIT_OK
from coldproof.harness.schema.power import Detection, SuiteRun
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.layers.processes import pytest_main
from coldproof.harness.session.pytest_command import suite_words
from coldproof.reports.assemble.assemble import assemble, read_events

WIDE_PROFILE = "wide"
FACTOR, SLACK = 6, 300  # of a run's budget: starts of engines, minimising and confirming come on top
# Options that are those of a plan.
AS_PLANNED = ("worker", "profile", "cells", "requirements", "fault", "noise", "calibration", "guided", "repairs")
CALIBRATION_BUDGETS = 4  # times of one fault, for the rule of all: a slow model measures little noise in one


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What the engines of a measurement serve: a model (a name or path; None: the generated one) with more flags."""

    model: str | None = None
    engine_args: str = ""

    @property
    def slug(self) -> str:
        """Return a name for files of measurements with this model and these flags; empty for Coldproof's own."""
        words = (Path(self.model or "").name, *shlex.split(self.engine_args))
        return re.sub(r"[^A-Za-z0-9.]+", "-", " ".join(words)).strip("-")


GENERATED = Served()


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suites: requirements, cells and budget in seconds. Without a fault, the engine is unmodified.

    No cells: those of the profile. No engine: the one that is measured in process.
    """

    worker: str
    seed: int
    seconds: float
    cells: tuple[str, ...]
    profile: str
    requirements: tuple[str, ...] = ()  # empty: all
    fault: str | None = None
    calibration: Path | None = None  # results.json of a run on the unmodified engine
    noise: str | None = None  # noise that is added to the engines' scores
    repairs: str = ""  # of known findings, as --repairs takes them
    served: Served = GENERATED
    to_first: bool = False  # end the run at its first confirmed violation
    guided: bool = False  # generation is guided by the states that were reached
    engine: str = ""

    def words(self, report: Path) -> list[str]:
        """Return the arguments of `python -m pytest`."""
        engine = ENGINES[self.engine] if self.engine else measured_engine()
        words = option_words(
            engine=engine.name,
            known_issues=engine.known_issues,
            budget=f"{self.seconds:g}s",
            **{name: getattr(self, name) for name in AS_PLANNED},
            **msgspec.structs.asdict(self.served),
            report_dir=report,
            findings=OFF,  # only what is drawn detects a fault here
            diagnose="none",
            allow_not_exercised=True,
            allow_inconclusive=True,
        )
        words += ["--hypothesis-seed", str(self.seed), *(["--maxfail", "1"] if self.to_first else [])]
        return suite_words([*words, "-q", "-W", "ignore", "-p", "no:logging"], folder=report.parent)


@functools.cache
def requirements() -> dict[str, Requirement]:
    """Return all requirements by id."""
    return declared()


def wide_cells(worker: str) -> tuple[str, ...]:
    """Return the names of the cells in which all requirements are tested."""
    return measured_engine().profile_cells(WIDE_PROFILE, worker)


def fault_cells(fault: Fault, worker: str) -> tuple[str, ...]:
    """Return the cells for the requirements about a fault: the fault's own cells, else the default ones."""
    named = [CELLS[name] for name in fault.cells or wide_cells(worker)]
    fitting = [cell for cell in named if cell.installed and cell.fits(measured_engine().name, worker)]
    suiting = [cell for cell in fitting if any(cell.suits(requirements()[one].suits) for one in fault.about)]
    return tuple(cell.name for cell in suiting or fitting)


def calibrate(
    folder: Path, *, worker: str, seed: int, noise: str | None, served: Served = GENERATED, budget: float
) -> Path | None:
    """Return results.json of a minimal run of the unmodified engine, which has the comparison rule. Run it if needed.

    `budget`: the seconds of one fault. Return None if the run failed.
    """
    found = folder / "report" / "results.json"
    seconds = 1 if served == GENERATED else CALIBRATION_BUDGETS * budget
    if not found.exists():
        ask = RunPlan(
            worker=worker,
            seed=seed,
            seconds=seconds,
            cells=(measured_engine().cells[0].name,),
            profile=WIDE_PROFILE,
            requirements=("REUSE-1",),
            noise=noise,
            served=served,
        )
        run(ask, folder)
    return found if found.exists() else None


def aimed_plan(fault: Fault, *, worker: str, seconds: float, seed: int) -> RunPlan:
    """Plan a run of the requirements about a fault; counterexamples are minimised."""
    return RunPlan(
        worker=worker,
        seed=seed,
        seconds=seconds,
        cells=fault_cells(fault, worker),
        profile=SMOKE,
        requirements=fault.about,
        fault=fault.name,
    )


def wide_plan(fault: Fault, *, worker: str, seconds: float, seed: int) -> RunPlan:
    """Plan a run of all requirements in the default cells and the fault's own cells."""
    cells = dict.fromkeys((*wide_cells(worker), *fault_cells(fault, worker)))
    return RunPlan(
        worker=worker, seed=seed, seconds=seconds, cells=tuple(cells), profile=WIDE_PROFILE, fault=fault.name
    )


def profile_plan(profile: str, fault: Fault | None, *, worker: str, seed: int) -> RunPlan:
    """Plan what a user runs in process with a profile, up to the first confirmed violation.

    `fault`: None for the unmodified engine.
    """
    amount = PROFILES[profile]
    return RunPlan(
        worker=worker,
        seed=seed,
        seconds=amount.fingerprint_seconds if worker == FINGERPRINT else amount.seconds,
        cells=(),
        profile=profile,
        fault=fault.name if fault is not None else None,
        to_first=fault is not None,
    )


def clean_plan(faults: list[Fault], *, worker: str, seconds: float, seed: int) -> RunPlan:
    """Plan a run of all requirements in all cells of these faults, on the unmodified engine."""
    cells = dict.fromkeys((*wide_cells(worker), *(cell for fault in faults for cell in fault_cells(fault, worker))))
    return RunPlan(worker=worker, seed=seed, seconds=seconds, cells=tuple(cells), profile=SMOKE)


def run(
    ask: RunPlan, folder: Path, main: Callable[[list[str]], int] = pytest_main, *, stopped: int = EXIT_OK
) -> SuiteRun:
    """Run the plan, wait for its end and return the result. A run that hangs is killed.

    The run's folder is its working directory, so that it does not reuse stored examples of other runs. `stopped`: the
    exit code with which `main` ends a run early.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words, problem = ask.words(folder / "report"), ""
    try:
        code = run_in_fork(FACTOR * ask.seconds + SLACK, main, words, folder)
        if code not in (EXIT_OK, EXIT_FAILED, EXIT_NOT_SHOWN, stopped):
            problem = f"exit code {code}"
    except RunTimedOut as late:
        problem = str(late)
    return read(folder / "report" / "events.ndjson", shlex.join(["python", "-m", "pytest", *words]), problem)


def read(path: Path, command: str, problem: str) -> SuiteRun:
    """Return the result of a run from its events. The run may have been killed."""
    if not path.exists():
        return SuiteRun(
            detections=[],
            verdicts={},
            examples=0,
            requests=0,
            seconds=0.0,
            acted=False,
            command=command,
            problem=problem or "it wrote no events",
        )
    events = read_events(path)
    results = assemble(events)
    first = next((e["at"] for e in events if e["event"] == "trial"), events[-1]["at"])
    cases = {case.id: case for case in results.cases}
    found: dict[str, Detection] = {}
    for event in events:
        violated = event["event"] == "verdict" and event["verdict"] == Verdict.VIOLATED
        # A known cause of the unmodified engine is no detection of a fault.
        of_fault = [case for case in violating(event, cases) if not case.may_be_known] if violated else []
        if of_fault and event["requirement"] not in found:
            requests, at = requests_until_failure(events, event["requirement"], event["cell"])
            found[event["requirement"]] = detection(event, of_fault[0], requests, at - first)
    return SuiteRun(
        detections=sorted(found.values(), key=lambda d: d.requests),
        verdicts={r.id: r.verdict.value for r in results.requirements},
        examples=results.totals["examples"],
        requests=results.totals["requests"],
        seconds=round(events[-1]["at"] - first, 1),
        acted=bool(results.fault and results.fault.acted),
        command=command,
        problem=problem or results.problem,
    )


def violating(verdict: dict[str, Any], cases: dict[str, Case]) -> list[Case]:
    """Return the cases for which a requirement is violated: that of the verdict, and those behind it."""
    further = [one["case"] for one in verdict["further"] if one["verdict"] == Verdict.VIOLATED]
    return [cases[name] for name in (verdict["case"], *further)]


def detection(event: dict[str, Any], case: Case, requests: int, seconds: float) -> Detection:
    """Return the detection of one violated requirement."""
    seen = case.reproduction
    return Detection(
        requirement=event["requirement"],
        cell=event["cell"],
        requests=requests,
        seconds=round(seconds, 1),
        failure_class=case.failure_class.value,
        sentence=case.sentence,
        steps=len(case.steps),
        reproduced=f"{seen.fresh_failed} of {seen.fresh_tries} on a fresh engine"
        if seen.fresh_failed
        else f"{seen.running_failed} of {seen.running_tries} on the running engine",
        provenance=case.provenance[0] if case.provenance else "",
    )


def requests_until_failure(events: list[dict[str, Any]], requirement: str, cell: str) -> tuple[int, float]:
    """Return the number of requests up to a requirement's first failing example in a cell, and the time of that."""
    requests = 0
    for event in events:
        if event["event"] == "example":
            requests += event["requests"]
            if event["failed"] and (event["requirement"], event["cell"]) == (requirement, cell):
                return requests, event["at"]
    return requests, events[-1]["at"]
