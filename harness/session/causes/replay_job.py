"""One replay of a case under repairs, in a process of its own: a repair lasts as long as its process.

It runs what a trial runs, on the engines of one cell, and judges it for the case's requirement. It draws nothing,
minimises nothing and writes no report: only how the case ended.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.engine import EngineError
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.repair import RepairError
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
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import Calibration
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload


class Run(msgspec.Struct, frozen=True):
    """A workload, and the nonce of its first try."""

    workload: Workload
    nonce: str


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """Replays of one or several workloads, one after the other, until one fails: `options` say on which engine, with
    which repairs and fault. `failure_class` and `signature`: those of the case that they are, or are like. `tries`: how
    often each of them runs at most.

    `calibrations`: what the run has measured on this kind of engine, by cell, so that it is not measured again.
    """

    options: Options
    cell: str
    requirement: Requirement
    runs: list[Run]
    tries: int = 1
    failure_class: FailureClass
    signature: str
    calibrations: dict[str, tuple[Calibration, Rule]] = {}


class ReplayEnd(msgspec.Struct, frozen=True):
    """How the replays ended. `words`: what was seen, or why they came to nothing. `run`: the place of the one that
    failed. `calibrations`: for the next ones.
    """

    result: ReplayResult
    words: str = ""
    run: int = 0
    calibrations: dict[str, tuple[Calibration, Rule]] = {}


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
        end = ReplayEnd(ReplayResult.NOT_RUN, str(problem))
    end_file.write_bytes(msgspec.json.encode(end))
    return 0


def replayed(job: ReplayJob, log: EventLog) -> ReplayEnd:
    """Replay each workload, until one fails. Raises EngineError, OracleError or UsageError."""
    pool = EnginePool(job.options, log)
    pool.calibrations = dict(job.calibrations)
    try:
        pool.prepare()
        engines = CellEngines.open(pool, CELLS[job.cell])
        contents = len(engines.contents)
        absent = missing(
            engines.engine.capabilities, job.requirement.needs, contents=contents, versions=len(engines.versions)
        )
        if absent:
            return ReplayEnd(ReplayResult.NOT_RUN, "; ".join(map(str, absent)))
        observe = Observer(engines, job.requirement, doubts=lambda: False)
        tested = engines.oracle_engine if job.requirement.without_cache else None
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


def end_of(job: ReplayJob, judgement: Judgement) -> ReplayEnd:
    """Return the end of a replay that failed. What its controls said of the class of the case holds for it, too.

    It fails in the same way if it has every circumstance of the case: this engine may tell more of them.
    """
    wanted = set(job.signature.split("; "))
    signs = (signature(judgement.history, job.failure_class, one.request) for one in judgement.findings)
    same = any(wanted <= set(sign.split("; ")) for sign in signs)
    return ReplayEnd(ReplayResult.FAILS if same else ReplayResult.OTHERWISE, judgement.worst().sentence)
