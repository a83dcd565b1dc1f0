"""Calibrates an engine before a run: how exact comparisons can be, and which mixtures of adapters it answers correctly.

The same prompts are answered cold, alone twice and in a batch of the same adapter, and half answers are continued.
Mixtures (several adapters, base
model with adapters) are checked separately: if one fails, the engine is at fault and not the cache (GROUND-1), and the
other requirements run without this mixture.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.execution.calibration.noise_band import Pace, Scoring, measure_band, measure_margin
from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.calibration.repeats import REPEATED_NATS, Repeats, surviving_answers
from coldproof.harness.execution.calibration.sensitivity import measure_sensitivity
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answer, OracleError, Question
from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import NoiseBand
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.oracles import is_other_engine
from coldproof.harness.schema.results import Calibration, Results, read_results
from coldproof.harness.workload.generators.prompts import (
    ADAPTERS_TOGETHER,
    BASE_WITH_ADAPTER,
    DEFAULT_BLOCK,
    whole_unit,
)
from coldproof.harness.workload.request_kinds import RequestKind
from coldproof.harness.workload.steps import Segment
from coldproof.harness.workload.tokens import segment_tokens

ROUNDS = 4
# A stall is no progress for as long as STALL_LATENCIES cold answers take, within these bounds (seconds). It is generous
# because machines are shared.
STALL_LATENCIES, SHORTEST_STALL, LONGEST_STALL = 100, 20.0, 120.0
TOKENS = 12
PARTS = 4  # times that each probe is sent: alone twice, in a batch, and with half of its answer
MIXED_TOKENS = 40  # a busy server admits requests one by one; short answers would end before the last is admitted
SLOW_SECONDS = 0.5  # for one answer: then short answers overlap as well
# How prompts are scored, first choice first, and the kind of requests that it needs.
SCORING_KINDS = {Scoring.BOTH: RequestKind.SCORES_BESIDE, Scoring.ALONE: RequestKind.SCORES}
TIMES_ROUNDING = 8  # two tokens may swap if their scores are so many times as close as the largest difference measured
SHARE = 0.25  # of the run's budget for each of the two long parts of a calibration, with a slow model


def calibrate(
    oracle: EngineOracle,
    digests: list[str],
    *,
    cell: str,
    block: int | None,
    slots: int,
    seconds: float = math.inf,
    stepped: bool = False,
    renew: Callable[[], object] | None = None,
    dropped: Collection[RequestKind] = (),
    on_death: Callable[[RequestKind, str], None] = lambda *_: None,
    progress: Progress = SILENT,
    wall: Callable[[], float] = time.monotonic,
) -> tuple[Calibration, Rule]:
    """Send the probes and return the calibration and the rule. Raises OracleError if the oracle cannot answer.

    `seconds`: the budget of the run. If the model is slow, fewer probes are sent. `stepped`: what is sent together is
    one batch, and the same each time, so that one round with short answers shows what all of them would. `renew`:
    replaces the oracle's engine after a request has ended it; None if Coldproof cannot start one. `dropped`: kinds of
    requests that are not sent. `on_death`: called with each further kind that ended the engine, and what it said.
    """
    block = whole_unit(block or DEFAULT_BLOCK)
    run = secrets.token_hex(4)
    identities: list[str | None] = [None, *digests[:2]]
    prompts = [segment_tokens(run, Segment(f"calibration {i}", length)) for i, length in enumerate(lengths(block))]
    probes = [Question(prompt, identity, TOKENS) for identity in identities for prompt in prompts]
    with progress.counting("calibrating", oracle, of=PARTS * len(probes)):
        probes, alone, repeats = surviving_answers(oracle, probes, wall, renew, on_death)
    identities = list(dict.fromkeys(probe.adapter for probe in probes))
    noise, exact = max(repeats.noise, repeats.continued), repeats.exact
    cold = ColdAnswers(rate=repeats.rate, nats=repeats.nats, steady=repeats.steady, step=repeats.step)
    rule = exact_rule(cold)
    pace = Pace(repeats.waited, SHARE * seconds)
    said: list[str] = []
    if not exact:
        rule, said = noisy_rule(oracle, identities, block, pace, renew, progress, dropped=dropped, on_death=on_death)
        said = [*continuation_notes(repeats), *said]
        if rule.band is None and rule.noise is not None:
            rule = msgspec.structs.replace(rule, noise=max(noise, rule.noise) if math.isfinite(noise) else None)
        if rule.band is None and rule.noise is None and repeats.differing:
            differing = f"{repeats.differing} of {PARTS * len(probes)} cold answers differ when asked for again"
            rule = msgspec.structs.replace(rule, why=f"{differing}, and {rule.why}")
    measured = measure_sensitivity(oracle, identities, block, rule, progress=progress)
    repeated = cold.rate if rule.band is None else rule.band.repeats
    cold = msgspec.structs.replace(cold, rate=repeated, sensitivity=measured)
    rule = msgspec.structs.replace(rule, cold=cold)
    mixtures = {ADAPTERS_TOGETHER: True, BASE_WITH_ADAPTER: True}
    if exact and len(identities) > 2 and oracle.saltless:
        mixtures = dict.fromkeys(mixtures, False)
        said.append("Mixtures of adapters are not drawn: no batch of cold requests shows what they answer.")
    elif exact and len(identities) > 2:
        # Alternating identities in one batch, with answers long enough to overlap.
        tokens = MIXED_TOKENS if repeats.waited < SLOW_SECONDS and not stepped else TOKENS
        mixed = [Question(prompt, identity, tokens) for prompt in prompts for identity in reversed(identities)]
        rounds = 1 if stepped else pace.most(ROUNDS, latencies=len(mixed))
        try:
            oracle.fill_slots(slots)
            mixtures = mixtures_that_hold(oracle, mixed, alone, rounds, progress)
        except OracleError as problem:
            if renew is None:
                raise
            said.append(f"The cold engine failed while it answered requests of several adapters together: {problem}.")
            renew()
            mixtures = dict.fromkeys(mixtures, False)
    calibration = Calibration(
        cell=cell,
        oracle=oracle.name,
        rule=str(rule),
        exact=exact,
        noise_nats=rule.noise if rule.band else noise if math.isfinite(noise) else None,
        band=rule.band,
        probes=PARTS * len(probes),
        differing=repeats.differing,
        mixtures=mixtures,
        notes=[*said, *insensitivity_notes(cold), *notes(oracle, mixtures)],
        cold=cold,
        rounding=rule.rounding,
        latency_seconds=round(repeats.latency, 4),
        answer_seconds=round(repeats.waited, 4),
        stall_seconds=stall_after(repeats.latency),
    )
    return calibration, rule


def exact_rule(cold: ColdAnswers) -> Rule:
    """Return the token-exact rule of an engine whose cold answers repeat: rounding decides as far as it was measured.

    The largest of some hundred differences is not the largest possible. Where no score was reported twice, or all were
    equal, rounding decides nothing; nor does it at margins at which many repeated tokens never changed. Scores that are
    rounded to steps repeat exactly until a hit, which is computed in other parts, moves one to the next step.
    """
    measured = max(min(REPEATED_NATS, TIMES_ROUNDING * (cold.nats or 0.0)), cold.rounded_by)
    if cold.steady is not None and cold.steady <= measured:
        measured = math.nextafter(cold.steady, 0.0)
    return Rule(exact=True, rounding=measured, cold=cold)


def insensitivity_notes(cold: ColdAnswers) -> list[str]:
    """Return a note if cold answers do not depend on a part of their requests."""
    said = cold.insensitive(adapters=True)
    return [f"The answers cannot show a wrong block: {said}."] if said else []


def stall_after(latency: float) -> float:
    """Return after how many seconds without progress a request has stalled, from the time of a cold answer."""
    return round(min(LONGEST_STALL, max(SHORTEST_STALL, STALL_LATENCIES * latency)), 1)


def noisy_rule(
    oracle: EngineOracle,
    identities: list[str | None],
    block: int,
    pace: Pace,
    renew: Callable[[], object] | None,
    progress: Progress,
    *,
    dropped: Collection[RequestKind] = (),
    on_death: Callable[[RequestKind, str], None] = lambda *_: None,
) -> tuple[Rule, list[str]]:
    """Return the rule for an engine that is nondeterministic without a cache, and notes about it.

    By scores, if the engine gives them. If it dies of requests for scores, in batches or alone, it loses only these.
    """
    said: list[str] = []
    death: tuple[RequestKind, str] | None = None
    for scoring, kind in SCORING_KINDS.items() if oracle.scores else ():
        if kind in dropped:
            said.append(f"No scores of prompts are requested {scoring.value}: the engine died of such requests.")
            continue
        try:
            band = measure_band(oracle, identities, block, pace, scoring, progress=progress)
        except OracleError as problem:
            if renew is None:
                raise
            said.append(
                f"The cold engine failed when it was asked for the scores of prompts {scoring.value}: {problem}."
            )
            renew()
            death = kind, str(problem)
            continue
        if death is not None:
            on_death(*death)
            death = None
        if isinstance(band, NoiseBand):
            # For answers without cold scores, the oracle's margin must exceed the tolerance.
            return Rule(exact=False, noise=band.margin_nats, band=band), [*said, noise_note(band)]
        said.append(f"Answers are not judged by their scores: {band}.")
        break
    if death is not None:
        on_death(*death)
        oracle.scores_prompts = False
    margin = measure_margin(oracle, identities, block, pace, progress=progress)
    if isinstance(margin, str):
        return Rule(exact=False, why=margin), [*said, f"Margins cannot be judged either: {margin}."]
    return Rule(exact=False, noise=margin), [
        *said,
        "Only the oracle's top-2 margin at the first different token is used.",
    ]


def mixtures_that_hold(
    oracle: EngineOracle, mixed: list[Question], alone: dict[Question, Answer], rounds: int, progress: Progress
) -> dict[str, bool]:
    """Return, for each mixture, whether concurrent requests get the same answers as alone, in this many rounds."""
    adapters = [probe for probe in mixed if probe.adapter is not None]
    most = len(mixed) + rounds * (len(adapters) + len(mixed))
    with progress.counting("checking concurrent requests of several adapters", oracle, of=most) as count:
        alone = alone | {probe: oracle.ask_without_memo(probe) for probe in mixed if probe not in alone}
        return {
            ADAPTERS_TOGETHER: holds(oracle, adapters, alone, rounds, count.show),
            BASE_WITH_ADAPTER: holds(oracle, mixed, alone, rounds, count.show),
        }


def continuation_notes(repeats: Repeats) -> list[str]:
    """Return a note if prefill and decode differ although equal requests repeat: a hit would show that as well."""
    if repeats.continued <= REPEATED_NATS:
        return []
    return [
        f"Equal requests repeat, but half an answer in a prompt is continued differently, by up to "
        f"{repeats.continued:.3g} nats, without any cache: prefill and decode differ."
    ]


def noise_note(band: NoiseBand) -> str:
    """Return a note for the reader about a nondeterministic engine."""
    return (
        f"Cold answers are nondeterministic. {band.positions:,} scores of {band.answers} answers, alone and in "
        f"batches, differ by at most {band.all_nats:.3g} nats, half of them by at most {band.half_nats:.3g}; at most "
        f"{band.flips:.2%} of the tokens are not the cold engine's choice. A fault that changes scores by less than "
        "the tolerance is not detected."
    )


def calibrated_run(source: Path) -> Results:
    """Return the results that --calibration names, also through a link. Raises UsageError if they cannot be read."""
    try:
        return read_results(source, follow=True)
    except (OSError, msgspec.MsgspecError) as problem:
        raise UsageError(f"--calibration {source} is not a results.json of this version: {problem}") from problem


def earlier_calibration(source: Path, *, cell: str, version: str | None) -> tuple[Calibration, Rule] | None:
    """Return the calibration and the rule of an earlier run; None if that run used another cell.

    They are valid only for the same engine, model and machine; only the version is checked. Raises UsageError if the
    file has no calibration that fits.
    """
    results = calibrated_run(source)
    found, engine = results.calibration, results.engine
    if found is None or engine is None:
        raise UsageError(f"--calibration {source}: that run found no comparison rule")
    if engine.version != version:
        raise UsageError(f"--calibration {source} is of version {engine.version}; this engine is {version}")
    if is_other_engine(found.oracle):
        raise UsageError(
            f"--calibration {source}: that run compared with {found.oracle}; give a run that compared the engine with "
            "itself"
        )
    if found.cell != cell:
        return None
    noise = None if found.exact else found.noise_nats
    rule = Rule(
        exact=found.exact,
        noise=noise,
        band=found.band,
        pooled=found.pooled,
        rounding=found.rounding,
        cold=found.cold,
    )
    note = f"Taken from the run of {results.started}, not measured again."
    return msgspec.structs.replace(found, notes=[*found.notes, note]), rule


def lengths(block: int) -> tuple[int, ...]:
    """Return prompt lengths around block boundaries, in tokens."""
    return (block - 1, 2 * block, 4 * block + 1)


def holds(
    oracle: EngineOracle,
    batch: list[Question],
    alone: dict[Question, Answer],
    rounds: int,
    after_round: Callable[[], None],
) -> bool:
    """Return whether a mixture gets the same answers as alone, over several rounds."""
    for _ in range(rounds):
        answers = oracle.ask_together(batch)
        after_round()
        if any(alone[probe].ids != answer.ids for probe, answer in zip(batch, answers, strict=True)):
            return False
    return True


def notes(oracle: EngineOracle, mixtures: dict[str, bool]) -> list[str]:
    """Return notes for the reader of the verdicts."""
    said = [
        f"Concurrent requests of the mixture '{mixture}' get other answers than alone, without any cache: see "
        "GROUND-1. Other requirements run without this mixture."
        for mixture, holds_true in mixtures.items()
        if not holds_true and not oracle.saltless
    ]
    if oracle.salted:
        said.append("The same-engine oracle bypasses the cache with unused salts: it cannot detect ignored salts.")
    elif oracle.saltless:
        how = oracle.engine.capabilities[Capability.COLD_ANSWERS].evidence
        said.append(
            f"The cold answers come from the engine under test ({how}): they are cold if its counts of cached "
            "tokens are right."
        )
    return said
