"""One replay of a case under repairs, in a process of its own: a repair lasts as long as its process.

It runs what a trial runs, on the engines of one cell, and judges it for the case's requirement. It draws nothing,
minimises nothing and writes no report: only how the case ended.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.repair import RepairError
from coldproof.harness.case.attribution import tries_of
from coldproof.harness.case.signature import signature
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.observer import Observer
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.judgement.requirement import Requirement, missing
from coldproof.harness.options import Options, UsageError
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import Calibration
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.causes.local_engine import LocalEngine
from coldproof.harness.workload.steps import Workload


class Run(msgspec.Struct, frozen=True):
    """A workload, and the nonce of its first try."""

    workload: Workload
    nonce: str


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """Replays of one or several workloads, one after the other, until one fails: `options` say on which engine, with
    which repairs and fault. `failure_class` and `signature`: those of the case that they are, or are like. `tries`: how
    often each of them runs at most. `requirements`: of them, the first whose needs the engine meets judges.

    `calibrations`: what the run has measured on this kind of engine, by cell, so that it is not measured again.
    """

    options: Options
    cell: str
    requirements: list[Requirement]
    runs: list[Run]
    tries: int = 1
    failure_class: FailureClass
    signature: str
    calibrations: dict[str, tuple[Calibration, Rule]] = {}


class ReplayEnd(msgspec.Struct, frozen=True):
    """How the replays ended. `words`: what was seen, or why they came to nothing. `run`: the place of the one that
    failed. `calibrations`: for the next ones. `broken`: its process ended, or its engine did not start.
    """

    result: ReplayResult
    words: str = ""
    run: int = 0
    calibrations: dict[str, tuple[Calibration, Rule]] = {}
    broken: bool = False


def job_of(
    case: Case,
    runs: Sequence[Run],
    requirements: Sequence[Requirement],
    local: LocalEngine,
    names: Collection[str],
    calibrations: Mapping[str, tuple[Calibration, Rule]],
) -> ReplayJob:
    """Return the job to replay a case, or what failed like it, on an engine with the repairs of these names."""
    chosen = [one for one in local.repairs if one.name in names]
    return ReplayJob(
        options=msgspec.structs.replace(local.options, repairs=(*local.options.repairs, *chosen)),
        cell=local.cell,
        requirements=list(requirements),
        runs=list(runs),
        tries=tries_of(case, runs[0].workload) if len(runs) == 1 else 1,
        failure_class=case.failure_class,
        signature=case.signature,
        calibrations=dict(calibrations),
    )


def write_job(path: Path, job: ReplayJob) -> None:
    """Write a job to a file. Raises OSError."""
    path.write_bytes(msgspec.json.encode(job, enc_hook=str))  # paths are texts


def read_job(path: Path) -> ReplayJob:
    """Return the job in a file. Raises OSError or msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=ReplayJob, dec_hook=path_of)


def path_of(kind: type, value: Any) -> Path:
    """Return a path from its text."""
    if kind is not Path:
        raise TypeError(f"{kind} is not in a job")
    return Path(value)


def main(words: list[str]) -> int:
    """Do the job in the file `words[0]`, and write its end to `words[1]`."""
    job_file, end_file = map(Path, words)
    job = read_job(job_file)
    log = EventLog(job_file.with_suffix(".events"))
    try:
        end = replayed(job, log)
    except (EngineError, OracleError, UsageError, RepairError) as problem:
        end = ReplayEnd(ReplayResult.NOT_RUN, str(problem), broken=True)
    end_file.write_bytes(msgspec.json.encode(end))
    return 0


def replayed(job: ReplayJob, log: EventLog) -> ReplayEnd:
    """Replay each workload, until one fails. Raises EngineError, OracleError or UsageError."""
    pool = EnginePool(job.options, log)
    pool.calibrations = dict(job.calibrations)
    try:
        pool.prepare()
        engines = CellEngines.open(pool, CELLS[job.cell])
        requirement, absent = judging(job.requirements, engines)
        if absent:
            return ReplayEnd(ReplayResult.NOT_RUN, absent)
        observe = Observer(engines, requirement, doubts=lambda: False)
        tested = engines.oracle_engine if requirement.without_cache else None
        for place, run in enumerate(job.runs):
            for attempt in range(job.tries):
                engine = engines.live_engine(tested or engines.engine)
                judgement = observe(engine, run.workload, run.nonce if attempt == 0 else None)
                if judgement.findings:
                    end = end_of(job, judgement)
                    return msgspec.structs.replace(end, run=place, calibrations=pool.calibrations)
        return ReplayEnd(ReplayResult.PASSES, calibrations=pool.calibrations)
    finally:
        gc.freeze()  # an engine that ends collects what this process has imported, which takes longer than a replay
        pool.close()


def judging(requirements: Sequence[Requirement], engines: CellEngines) -> tuple[Requirement, str]:
    """Return the first of these requirements whose needs the engine meets, or else the first, and what it lacks."""
    capabilities, numbers = engines.engine.capabilities, (len(engines.contents), len(engines.versions))
    lacks = [missing(capabilities, one.needs, contents=numbers[0], versions=numbers[1]) for one in requirements]
    place = next((place for place, absent in enumerate(lacks) if not absent), 0)
    return requirements[place], "; ".join(map(str, lacks[place]))


def end_of(job: ReplayJob, judgement: Judgement) -> ReplayEnd:
    """Return the end of a replay that failed. What its controls said of the class of the case holds for it, too.

    It fails in the same way if it has every circumstance of the case: this engine may tell more of them.
    """
    wanted = set(job.signature.split("; "))
    signs = (signature(judgement.history, job.failure_class, one.request) for one in judgement.findings)
    same = any(wanted <= set(sign.split("; ")) for sign in signs)
    return ReplayEnd(ReplayResult.FAILS if same else ReplayResult.OTHERWISE, judgement.worst().sentence)
