"""Measures an engine without a fault under score noise: the deviations of correct answers, and false positives.

Requests are processed as in a suite (workload, history, oracle, judge), in bursts large enough for about 100,000
requests in an hour. The oracle is asked in batches, where a suite asks it one question at a time.
"""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from coldproof.adapters.registry import CELLS, measured_engine
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.calibration.pareto_tail import quantile
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.oracles.engine import batches
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.judgement.checkers.noise_tolerance import excess, measure_deviation
from coldproof.harness.judgement.criteria import BOUNDS
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import Judgement, judge, needed_questions
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.options import Options
from coldproof.harness.power.stored import stored_measurement
from coldproof.harness.power.suite_run import GENERATED, Served
from coldproof.harness.schema.case import NoiseBand
from coldproof.harness.schema.noise import FACTORS, CleanLevel
from coldproof.harness.selection.validation import check_options
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, SetAdapter, Workload
from coldproof.reports.files.own_folder import claim

PRELUDES, TAILS = 2, 6  # for each identity; all requests are sent twice, so that half of them hit completely
ORACLE_BATCH = 32  # questions that the oracle answers in one batch
CALIBRATED_FOR = (
    "20m"  # the run for which the engine is calibrated: a slow model answers fewer prompts for a shorter one
)
STORE_SECONDS = 10  # between two times that a measurement is stored: what ends it early costs no more
MAX_EXCESS_VALUES = 300  # largest deviations kept in the summary
QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999)


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One level of noise to measure. `requests`: how many requests in total. `seconds`: for judging them, at most; then
    there may be fewer.

    `tails`: the prompts behind each prelude. More of them are faster on an engine that computes large batches.
    `calibration`: results.json of a run whose comparison rule is used; None: the engine is calibrated.
    """

    worker: str
    noise: str | None
    cell: str
    requests: int
    served: Served = GENERATED
    tails: int = TAILS
    calibration: Path | None = None
    seconds: float = math.inf

    @property
    def batch_size(self) -> int:
        """How many questions the oracle answers in one batch: those of one identity, if they are many."""
        return max(ORACLE_BATCH, PRELUDES * self.tails)

    @property
    def engine(self) -> str:
        """The engine that is measured: that of the cell, if it is another one than faults are injected into."""
        measured, cell = measured_engine().name, CELLS[self.cell]
        return measured if cell.fits(measured, self.worker) else cell.engine

    @property
    def name(self) -> str:
        """The name of its file."""
        noise = (self.noise or "none").replace(":", "-")
        return "-".join(filter(None, (self.worker, noise, self.cell, self.served.slug)))


class JudgedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The stored result of one request: its deviation in units of the tolerance, and whether it was flagged."""

    excess: float
    flips: int
    parted: bool
    hit: bool
    accused: bool


class CleanMeasurement(msgspec.Struct, kw_only=True):
    """The measurement so far. It is stored every ten seconds, so that an interrupted measurement can be resumed.

    `rows` are relative to `band`, the tolerance found at the first start of the engine.
    """

    rows: list[JudgedRequest]
    band: NoiseBand | None
    rule: str
    none: str
    seconds: float


def measure(level: Level, *, out: Path, seed: int, say: Callable[[str], None]) -> CleanLevel:
    """Return the result of a level, measuring more requests if needed. Raises EngineStartError or OracleError."""
    file = out / "clean" / f"{level.name}.json"
    stored = stored_measurement(file, CleanMeasurement) if file.exists() else None
    if stored is None or (len(stored.rows) < level.requests and not stored.none):
        stored = measure_clean(level, stored, out=out, seed=seed, say=say, file=file)
    return clean_level(level, stored)


def measure_clean(
    level: Level, stored: CleanMeasurement | None, *, out: Path, seed: int, say: Callable[[str], None], file: Path
) -> CleanMeasurement:
    """Start the engines, calibrate, and judge workloads until there are enough requests."""
    folder = out / "runs" / f"clean-{level.name}"
    folder.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Text is not used here, and decoding each prompt token takes longer than everything else.
    quick = ("--skip-tokenizer-init",) if level.engine == measured_engine().name else ()
    flags = (*quick, *shlex.split(level.served.engine_args))
    options = Options(
        engine=level.engine,
        report_dir=folder,
        worker=level.worker,
        noise=level.noise,
        engine_args=flags,
        model=level.served.model,
        budget=CALIBRATED_FOR,
        calibration=level.calibration,
    )
    check_options(options)
    with contextlib.closing(EnginePool(options, EventLog(claim(folder / "events.ndjson")))) as session:
        session.prepare()
        engines = CellEngines.open(session, CELLS[level.cell])
        rule = engines.rule
        # Stored deviations are relative to the first tolerance, so that a resumed measurement must use it too.
        measurement = stored or CleanMeasurement(rows=[], band=rule.band, rule=str(rule), none="", seconds=0.0)
        if measurement.band is not None:
            rule = Rule(exact=False, noise=measurement.band.margin_nats, band=measurement.band)
        if rule.band is None and not rule.exact:
            measurement.none = str(rule)
        else:
            judge_workloads(engines, rule, measurement, level, seed=seed, say=say, file=file)
        claim(file).write_bytes(msgspec.json.encode(measurement))
        return measurement


def judge_workloads(
    engines: CellEngines,
    rule: Rule,
    measurement: CleanMeasurement,
    level: Level,
    *,
    seed: int,
    say: Callable[[str], None],
    file: Path,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Judge workloads until there are enough requests, or no time for another one. Store and report the progress every
    ten seconds."""
    began, before, at_first, reported_at = clock(), measurement.seconds, len(measurement.rows), 0.0
    source, longest, done = random.Random(seed + at_first), 0.0, began
    while len(measurement.rows) < level.requests and clock() - began + longest <= level.seconds:
        judgement = judge_workload(engines, rule, draw_workload(source, tails=level.tails), batch_size=level.batch_size)
        measurement.rows += judged_requests(judgement, rule)
        longest, done = max(longest, clock() - done), clock()
        measurement.seconds = round(before + done - began, 1)
        if done - reported_at > STORE_SECONDS:
            reported_at = done
            rate = (len(measurement.rows) - at_first) / (reported_at - began)
            left = (level.requests - len(measurement.rows)) / rate
            flagged = sum(row.accused for row in measurement.rows)
            say(
                f"{level.name}: {len(measurement.rows):,} requests, {flagged} flagged; {rate:.1f}/s, "
                f"{left / 60:.0f} min left"
            )
            claim(file).write_bytes(msgspec.json.encode(measurement))


def judge_workload(
    engines: CellEngines, rule: Rule, drawn: Workload, *, caching: bool = True, batch_size: int = ORACLE_BATCH
) -> Judgement:
    """Run a workload on the engine under test and judge it. Cold answers are fetched first, in batches.

    Without `caching`, it is run on the engine that gives the cold answers, if there is one.

    The oracle's memory of answers is cleared afterwards, because no prompt is sent again.
    """
    oracle = engines.cold
    tested = engines.engine if caching or engines.oracle_engine is None else engines.oracle_engine
    history = WorkloadRun(
        tested,
        drawn,
        secrets.token_hex(3),
        engines.contents,
        engines.pool.workspace.folder(),
        scored=True,
    ).history()
    new = [question for question in dict.fromkeys(needed_questions(history, rule)) if question not in oracle.memo]
    for batch in batches(new, batch_size):
        oracle.memo |= dict(zip(batch, oracle.ask_together(batch), strict=True))
    judgement = judge(history, oracle, rule, exclusive=True)
    oracle.memo.clear()
    return judgement


def draw_workload(source: random.Random, *, tails: int = TAILS) -> Workload:
    """Return a workload of shared prefixes with tails, for the base model and two adapters, sent twice."""
    names: tuple[str | None, ...] = (None, "left", "right")
    loads = [
        SetAdapter(name=name, content=content, path=f"files-{content}")
        for name, content in (("left", "A"), ("right", "B"))
    ]
    bursts = []
    for name in names:
        requests = tuple(
            Request(
                prompt=Prompt(
                    (
                        Segment(f"prelude {name} {prelude}", source.choice((28, 32, 60, 64, 91))),
                        Segment(f"tail {name} {prelude} {tail}", source.choice((1, 5, 31, 33))),
                    )
                ),
                adapter=name,
                max_tokens=source.choice((4, 8, 8, 8, 16)),
            )
            for prelude in range(PRELUDES)
            for tail in range(tails)
        )
        bursts += [Burst(requests=requests), Burst(requests=requests)]
    return Workload((*loads, *bursts))


def judged_requests(judgement: Judgement, rule: Rule) -> list[JudgedRequest]:
    """Return the result of each request that was judged: by its scores, or by its tokens if they repeat exactly."""
    band, history = rule.band, judgement.history
    # An engine may lose a hit, which no tolerance decides.
    accused = {found.request for found in judgement.findings if found.checker != BOUNDS}
    parted = {found.request for found in judgement.noise}
    rows = []
    for outcome in comparable_outcomes(history):
        one = measure_deviation(history, outcome, judgement.answers, band) if band is not None else None
        if one is not None or rule.exact:
            rows.append(
                JudgedRequest(
                    excess=round(excess(one, band), 5) if one is not None and band is not None else 0.0,
                    flips=one.flips if one is not None else 0,
                    parted=outcome.request in parted,
                    hit=outcome.hit_at_least > 0,
                    accused=outcome.request in accused or None in accused,
                )
            )
    return rows


def clean_level(level: Level, stored: CleanMeasurement) -> CleanLevel:
    """Return the level's summary for the curve."""
    values = sorted((row.excess for row in stored.rows), reverse=True)
    return CleanLevel(
        worker=level.worker,
        noise=", ".join(filter(None, (level.noise or "the cell's own", level.served.slug))),
        cell=level.cell,
        requests=len(values),
        hits=sum(row.hit for row in stored.rows),
        parted=sum(row.parted for row in stored.rows),
        alarms=sum(row.accused for row in stored.rows),
        alarms_without_threshold=sum(row.accused and row.excess <= 1 for row in stored.rows),
        excess=values[:MAX_EXCESS_VALUES],
        over=[sum(value > factor for value in values) for factor in FACTORS],
        quantiles={f"{share:g}": quantile(values, share) for share in QUANTILES} if values else {},
        band=stored.band,
        none=stored.none,
        rule=stored.rule,
        seconds=stored.seconds,
    )
