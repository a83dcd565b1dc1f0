"""Measures one fault, or the engine as it is, and remembers each result as soon as it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.faults.fault import Fault
from harness.power import literal, plan, suites
from harness.power.forked import DidNotEnd, within
from reports.power_schema import FaultRow, FieldReport, Outcome, SuiteRun

LITERAL_SECONDS = 600
Measured = TypeVar("Measured", FaultRow, SuiteRun)


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of drawing for each run."""

    aimed: float
    wide: float


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure: the worker, the seed and the budgets of every run; where results and logs go."""

    worker: str
    seed: int
    budgets: Budgets
    root: Path
    out: Path
    wide: str = "always"  # or only for what the aimed run "missed", or "never"
    scripts: bool = True  # the field reports' own, too
    calibration: Path | None = None  # results.json of the engine as it is, where its comparison rule was found
    noise: str | None = None  # that all engines' scores waver by

    def calibrated(self) -> Measurement:
        """The same with the comparison rule of the engine as it is, found once instead of with every fault."""
        folder = self.out / "runs" / "calibration"
        found = folder / "report" / "results.json"
        if not found.exists():
            ask = plan.calibration(worker=self.worker, seed=self.seed)
            suites.run(msgspec.structs.replace(ask, noise=self.noise), folder)
        return msgspec.structs.replace(self, calibration=found if found.exists() else None)

    def against(self, ask: suites.Ask, folder: Path) -> SuiteRun:
        """One run against a fault."""
        return suites.run(msgspec.structs.replace(ask, calibration=self.calibration, noise=self.noise), folder)

    def row(self, fault: Fault) -> FaultRow:
        """A fault's result."""
        return self.remembered(fault.name, FaultRow, lambda: self.measured(fault))

    def remembered(self, name: str, kind: type[Measured], measure: Callable[[], Measured]) -> Measured:
        """What was measured before, or is now."""
        file = self.out / "rows" / f"{name}.json"
        if file.exists():
            return msgspec.json.decode(file.read_bytes(), type=kind)
        result = measure()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(result))
        return result

    def measured(self, fault: Fault) -> FaultRow:
        """The requirements about it, then all, then the field reports' scripts."""
        aimed = wide = None
        scripts: list[FieldReport] = []
        if not fault.equivalent:
            folder = self.out / "runs" / fault.name
            ask = plan.aimed(fault, worker=self.worker, seconds=self.budgets.aimed, seed=self.seed)
            aimed = self.against(ask, folder / "aimed")
            if self.wide == "always" or (self.wide == "missed" and not caught_by_its_own(fault, aimed)):
                ask = plan.wide(fault, worker=self.worker, seconds=self.budgets.wide, seed=self.seed)
                wide = self.against(ask, folder / "wide")
            scripts = self.literally(fault.name, folder / "literal")
        return FaultRow(
            name=fault.name,
            mechanism=fault.mechanism,
            summary=fault.summary,
            stands_for=fault.stands_for,
            about=list(fault.about),
            rare=fault.rare,
            equivalent=fault.equivalent,
            outcome=outcome(fault, [run for run in (aimed, wide) if run is not None]),
            aimed=aimed,
            wide=wide,
            literal=scripts,
        )

    def literally(self, fault: str | None, folder: Path) -> list[FieldReport]:
        """The field reports' scripts; nothing where they are not wanted or do not come to an end."""
        if not self.scripts:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        words = ["--worker", self.worker, "--root", str(self.root), "--out", str(folder)]
        words += ["--fault", fault] if fault is not None else []
        with contextlib.suppress(DidNotEnd):
            within(LITERAL_SECONDS, literal.main, tuple(words), folder)
        written = folder / "literal.json"
        return msgspec.json.decode(written.read_bytes(), type=list[FieldReport]) if written.exists() else []

    def clean(self, faults: list[Fault], number: int) -> SuiteRun:
        """One run against the engine as it is, under a seed of its own, with the budgets of a fault together."""
        seconds = self.budgets.aimed + self.budgets.wide
        ask = plan.clean(faults, worker=self.worker, seconds=seconds, seed=self.seed + number)
        folder = self.out / "runs" / f"clean-{number}"
        return self.remembered(f"(clean {number})", SuiteRun, lambda: suites.run(ask, folder))


def caught_by_its_own(fault: Fault, run: SuiteRun) -> bool:
    """Whether a requirement that is about a fault noticed it."""
    return any(detection.requirement in fault.about for detection in run.detections)


def outcome(fault: Fault, runs: list[SuiteRun]) -> Outcome:
    """What became of a fault in its runs."""
    if fault.equivalent:
        return Outcome.EQUIVALENT
    if any(run.detections for run in runs):
        return Outcome.CAUGHT
    if any(run.problem for run in runs):
        return Outcome.NO_ENGINE
    return Outcome.SURVIVED if any(run.acted for run in runs) else Outcome.NEVER_ACTED
