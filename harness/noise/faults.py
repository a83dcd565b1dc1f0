"""The catalogue of injected faults on an engine whose scores waver: which are still caught, and how far they stray.

Each is put to the requirements that are about it, as `harness.power` does, in a random order: what is known before all
are measured is a fair sample of the whole.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from harness.checkers.finding import Finding
from harness.checkers.noisy import MATCHED, beyond_chance, excess, measured, too_short_or_long
from harness.checkers.tokens import closest
from harness.faults.fault import Fault
from harness.noise.first import FOUND, pytest_main
from harness.oracle.base import judged
from harness.power import measure, plan, suites
from harness.power.forked import DidNotEnd, within
from harness.qualify.rejudge import Stored
from reports.assemble import EXAMPLE, EXIT_FAILED, EXIT_OK
from reports.noise_schema import FaultLevel, NoisyFault
from reports.power_schema import Outcome, SuiteRun
from reports.schema import FailureClass

WITHOUT = "none"
MOST = 1e6  # in units of the band: a score that nobody gave, or no noise to measure by


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: the worker, the noise (None: the engine repeats itself), the seconds of drawing for each."""

    worker: str
    noise: str | None
    budget: float
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.worker}-{self.words.replace(':', '-')}"

    @property
    def words(self) -> str:
        """The noise, in a word."""
        return self.noise or WITHOUT


class Looked(msgspec.Struct):
    """Of a run's examples: how far the furthest answer strayed, in units of the band; whether anything was found that
    needs no threshold; the first thing that was found, by which requirement, and after how many requests.
    """

    strayed: float = 0.0
    needs_none: bool = False
    sentence: str = ""
    by: str = ""
    requests: int = 0

    def add(self, stored: Stored) -> None:
        """One more example."""
        self.strayed = max([self.strayed, *deviations(stored)])
        self.needs_none = self.needs_none or any(without_threshold(stored, found) for found in stored.findings)
        self.requests += 0 if self.sentence else len(stored.history.outcomes)
        if stored.findings and not self.sentence:
            self.sentence, self.by = stored.findings[0].sentence, stored.requirement


def measure_all(
    level: Level, faults: list[Fault], *, out: Path, say: Callable[[str], None], missed: bool = False
) -> FaultLevel:
    """Every fault that was not measured before. `missed`: those again that were not caught, of this level's budget."""
    calibration = calibrated(level, out)
    counted = [fault for fault in faults if not fault.equivalent]
    shuffled = random.Random(level.seed).sample(counted, len(counted))
    for number, fault in enumerate(shuffled, 1):
        file = row_of(level, fault, out)
        if not file.exists() or (missed and not msgspec.json.decode(file.read_bytes(), type=NoisyFault).caught):
            found = measured_fault(level, fault, calibration, out)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(msgspec.json.encode(found))
            say(f"[{number}/{len(counted)}] {level.name}: {fault.name} {line(found)}")
    return known(level, faults, out)


def known(level: Level, faults: list[Fault], out: Path) -> FaultLevel:
    """What has been measured of these so far."""
    counted = [fault for fault in faults if not fault.equivalent]
    files = [row_of(level, fault, out) for fault in counted]
    rows = [msgspec.json.decode(file.read_bytes(), type=NoisyFault) for file in files if file.exists()]
    return FaultLevel(worker=level.worker, noise=level.words, of=len(counted), faults=rows, budget=level.budget)


def row_of(level: Level, fault: Fault, out: Path) -> Path:
    """Where a fault's result is kept."""
    return out / "faults" / level.name / f"{fault.name}.json"


def calibrated(level: Level, out: Path) -> Path:
    """results.json of the engine as it is under this noise, which has the band."""
    folder = out / "runs" / f"calibration-{level.name}"
    found = folder / "report" / "results.json"
    if not found.exists():
        ask = plan.calibration(worker=level.worker, seed=level.seed)
        suites.run(msgspec.structs.replace(ask, noise=level.noise), folder)
    return found


def measured_fault(level: Level, fault: Fault, calibration: Path, out: Path) -> NoisyFault:
    """The requirements about a fault, put to the engine that has it. What the run wrote is looked at and removed."""
    folder = out / "runs" / f"{level.name}-{fault.name}"
    folder.mkdir(parents=True, exist_ok=True)
    ask = plan.aimed(fault, worker=level.worker, seconds=level.budget, seed=level.seed)
    ask = msgspec.structs.replace(ask, noise=level.noise, calibration=calibration, profile=plan.WIDE_PROFILE)
    words, problem = ask.words(folder / "report"), ""
    try:
        code = within(suites.FACTOR * level.budget + suites.SLACK, pytest_main, tuple(words), folder)
        problem = "" if code in (EXIT_OK, EXIT_FAILED, FOUND) else f"exit code {code}"
    except DidNotEnd as late:
        problem = str(late)
    events = folder / "report" / "events.ndjson"
    looked = looked_at(events) if events.exists() else Looked()
    run = suites.read(events, "", problem)
    shutil.rmtree(folder, ignore_errors=True)
    return row(fault, run, looked)


def row(fault: Fault, run: SuiteRun, looked: Looked) -> NoisyFault:
    """A fault's result: caught where the judge accused an answer, a count or an event."""
    outcome = Outcome.CAUGHT if looked.sentence else measure.outcome(fault, [run])
    return NoisyFault(
        name=fault.name,
        mechanism=fault.mechanism,
        outcome=outcome.value,
        caught=outcome is Outcome.CAUGHT,
        acted=run.acted or outcome is Outcome.CAUGHT,
        needs_no_threshold=looked.needs_none,
        excess=round(min(MOST, looked.strayed), 4),
        by=looked.by,
        requests=looked.requests,
        sentence=looked.sentence or run.problem,
    )


def looked_at(events: Path) -> Looked:
    """What the examples of a run show."""
    found = Looked()
    with events.open("rb") as lines:
        for line in lines:
            if line.startswith(EXAMPLE) and line.endswith(b"\n"):  # a run that was ended leaves half a line
                found.add(msgspec.json.decode(line, type=Stored))
    return found


def deviations(stored: Stored) -> Iterator[float]:
    """How far each answer that was scored strayed, in units of the band."""
    band = stored.rule.band
    if band is not None:
        for outcome in judged(stored.history):
            one = measured(stored.history, outcome, dict(stored.answers), band)
            if one is not None:
                yield excess(one, band)


def without_threshold(stored: Stored, found: Finding) -> bool:
    """Whether a finding would be one at any level of noise: by counts, ends, lengths, or a positive match."""
    band = stored.rule.band
    if found.checker != "tokens" or band is None:
        return found.checker != "surface" or found.failure_class is FailureClass.API
    outcome = next(o for o in judged(stored.history) if o.request == found.request)
    answers = dict(stored.answers)
    one = measured(stored.history, outcome, answers, band)
    if one is None:
        return False
    matched = found.failure_class in MATCHED
    return too_short_or_long(outcome, closest(outcome, answers).ids) or (matched and beyond_chance(one, band))


def line(found: NoisyFault) -> str:
    """One fault in a few words."""
    how = "needs no threshold" if found.needs_no_threshold else f"strays {found.excess:.3g} times the band"
    return f"{'caught' if found.caught else found.outcome.upper()} by {found.by or 'nothing'}; {how}"
