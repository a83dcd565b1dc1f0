"""Requests to an engine without any fault: how far right answers stray when scores waver, and whether any is accused.

They go the way that a suite's requests go (a workload, its history, the oracle, the judge), in bursts large enough to
have a hundred thousand of them in an hour. What a suite asks the oracle one by one is asked here in batches.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from harness.bench import Bench
from harness.budget import Budget
from harness.cells import CELLS
from harness.checkers.deviation import Deviation
from harness.checkers.finding import Rule
from harness.checkers.noisy import excess, measured
from harness.events import EventLog
from harness.history import History
from harness.judge import Judgement, judge, wanted
from harness.options import Options
from harness.oracle.base import Question, judged
from harness.oracle.engine import EngineOracle
from harness.runner import Run
from harness.session import Session
from harness.tail import quantile
from harness.workload import Burst, Prompt, Request, Segment, SetAdapter, Workload
from reports.noise_schema import FACTORS, CleanLevel
from reports.schema import NoiseBand

PRELUDES, TAILS = 2, 6  # for each identity; the same requests once more, so that half of them hit as a whole
TOGETHER = 32  # questions that the oracle is asked at once
KEPT = 300
QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999)


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: the worker, the noise and the cell; `requests` in all."""

    worker: str
    noise: str | None
    cell: str
    requests: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.worker}-{(self.noise or 'none').replace(':', '-')}-{self.cell}"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One request, as it is kept: what its answer deviated by, and whether it was accused."""

    excess: float
    flips: int
    parted: bool
    hit: bool
    accused: bool


class Kept(msgspec.Struct, kw_only=True):
    """What is known so far, written after every few thousand requests: a measurement goes on where it stopped.

    The band is found anew whenever the engine is started anew; deviations are kept in units of it.
    """

    rows: list[Judged]
    band: NoiseBand | None
    rule: str
    none: str
    seconds: float


def measure(level: Level, *, root: Path, out: Path, seed: int, say: Callable[[str], None]) -> CleanLevel:
    """Ask until there are enough. Raises EngineStartError or OracleError."""
    file = out / "clean" / f"{level.name}.json"
    kept = msgspec.json.decode(file.read_bytes(), type=Kept) if file.exists() else None
    if kept is None or (len(kept.rows) < level.requests and not kept.none):
        kept = asked(level, kept, root=root, out=out, seed=seed, say=say, file=file)
    return told(level, kept)


def asked(
    level: Level, kept: Kept | None, *, root: Path, out: Path, seed: int, say: Callable[[str], None], file: Path
) -> Kept:
    """Start the engines, calibrate, and judge workload after workload."""
    folder = out / "runs" / f"clean-{level.name}"
    folder.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    # No text is looked at, and turning each token of a prompt into its own text takes longer than all the rest.
    plain = ("--skip-tokenizer-init",)
    options = Options(
        engine="vllm-inproc", report_dir=folder, worker=level.worker, noise=level.noise, engine_args=plain
    )
    options.check()
    session = Session(options, EventLog(folder / "events.ndjson"), root, Budget(1.0, 1.0))
    try:
        session.prepare()
        bench = Bench(session, CELLS[level.cell])
        rule = bench.rule
        # A band of another start would put two measures into one list.
        known = kept if kept is not None else Kept(rows=[], band=rule.band, rule=str(rule), none="", seconds=0.0)
        if known.band is not None:
            rule = Rule(exact=False, noise=known.band.margin_nats, band=known.band)
        if rule.band is None:
            known.none = str(rule)
        else:
            go_on(bench, rule, known, level, seed=seed, say=say, file=file)
        file.write_bytes(msgspec.json.encode(known))
        return known
    finally:
        session.close()


def go_on(
    bench: Bench, rule: Rule, known: Kept, level: Level, *, seed: int, say: Callable[[str], None], file: Path
) -> None:
    """Workload after workload, until there are enough."""
    began, before, at_first, told_at = time.monotonic(), known.seconds, len(known.rows), 0.0
    source = random.Random(seed + at_first)
    while len(known.rows) < level.requests:
        judgement = one_history(bench, rule, workload(source))
        known.rows += rows_of(judgement, rule)
        known.seconds = round(before + time.monotonic() - began, 1)
        if time.monotonic() - told_at > 60:
            told_at = time.monotonic()
            rate = (len(known.rows) - at_first) / (told_at - began)
            left = (level.requests - len(known.rows)) / rate
            accused = sum(row.accused for row in known.rows)
            say(
                f"{level.name}: {len(known.rows):,} requests, {accused} accused; {rate:.1f}/s, {left / 60:.0f} min left"
            )
            file.write_bytes(msgspec.json.encode(known))


def one_history(bench: Bench, rule: Rule, drawn: Workload) -> Judgement:
    """Run a workload on the engine under test and judge it, with all that the judge will ask asked before, in batches.

    The memory of answers is emptied afterwards: no prompt comes back.
    """
    oracle = bench.cold
    history = Run(
        bench.engine, drawn, secrets.token_hex(3), bench.contents, bench.session.folder(), scored=True
    ).history()
    remember(oracle, history, rule)
    judgement = judge(history, oracle, rule, exclusive=True)
    oracle.memo.clear()
    return judgement


def remember(oracle: EngineOracle, history: History, rule: Rule) -> None:
    """Ask what the judge is going to ask, many at once."""
    new = [question for question in dict.fromkeys(wanted(history, rule)) if question not in oracle.memo]
    for batch in in_turn(new):
        oracle.memo |= dict(zip(batch, oracle.ask_together(batch), strict=True))


def in_turn(asked_for: list[Question]) -> Iterator[list[Question]]:
    """Batches of one identity each: mixtures are GROUND-1's matter."""
    for identity in dict.fromkeys(question.adapter for question in asked_for):
        mine = [question for question in asked_for if question.adapter == identity]
        for start in range(0, len(mine), TOGETHER):
            yield mine[start : start + TOGETHER]


def workload(source: random.Random) -> Workload:
    """Preludes with tails, by the base model and two adapters, and all of them again."""
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
            for tail in range(TAILS)
        )
        bursts += [Burst(requests=requests), Burst(requests=requests)]
    return Workload((*loads, *bursts))


def rows_of(judgement: Judgement, rule: Rule) -> list[Judged]:
    """What became of each request that was judged by its scores."""
    band, history = rule.band, judgement.history
    assert band is not None
    accused = {found.request for found in judgement.findings}
    parted = {found.request for found in judgement.noise}
    rows = []
    for outcome in judged(history):
        one: Deviation | None = measured(history, outcome, judgement.answers, band)
        if one is not None:
            rows.append(
                Judged(
                    excess=round(excess(one, band), 5),
                    flips=one.flips,
                    parted=outcome.request in parted,
                    hit=outcome.hit_at_least > 0,
                    accused=outcome.request in accused or None in accused,
                )
            )
    return rows


def told(level: Level, kept: Kept) -> CleanLevel:
    """The level as the curve has it."""
    values = sorted((row.excess for row in kept.rows), reverse=True)
    return CleanLevel(
        worker=level.worker,
        noise=level.noise or "the cell's own",
        cell=level.cell,
        requests=len(values),
        hits=sum(row.hit for row in kept.rows),
        parted=sum(row.parted for row in kept.rows),
        alarms=sum(row.accused for row in kept.rows),
        alarms_without_threshold=sum(row.accused and row.excess <= 1 for row in kept.rows),
        excess=values[:KEPT],
        over=[sum(value > factor for value in values) for factor in FACTORS],
        quantiles={f"{share:g}": quantile(values, share) for share in QUANTILES} if values else {},
        band=kept.band,
        none=kept.none,
        rule=kept.rule,
        seconds=kept.seconds,
    )
