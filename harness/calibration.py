"""Before anything else: how exact may comparisons be on this engine, and which mixtures does its ground rule break on?

The same prompt is asked cold, twice, and once more in a batch of its own kind. Mixtures (adapters together, base with
adapter) are looked at apart from that: where one is broken the fault is the engine's and not the cache's (GROUND-1),
and the other requirements go on without that mixture.
"""

from __future__ import annotations

import math
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from harness.checkers.finding import Rule
from harness.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER, DEFAULT_BLOCK, whole_unit
from harness.noise_floor import measure_band
from harness.options import UsageError
from harness.oracle.base import Answer, Question
from harness.oracle.engine import EngineOracle
from harness.oracle.other import is_across
from harness.tokens_computed import common_prefix
from harness.workload import Segment, segment_tokens
from reports.schema import Calibration, NoiseBand, read_results

ROUNDS = 4
# A stall: nothing moves for as long as so many cold answers take. Generous, for machines are shared; bounded both ways.
STALL_LATENCIES, SHORTEST_STALL, LONGEST_STALL = 100, 20.0, 120.0
TOKENS = 12
# Equal tokens whose scores lie further apart are luck: with scores that move by so much, one token in a thousand would
# be another one. Another order of float32 additions moves them by some 1e-6.
REPEATED_NATS = 1e-3
MIXED_TOKENS = 40  # a busy server takes requests in one by one; with short answers the first would be gone by then


def calibrate(
    oracle: EngineOracle, digests: list[str], *, cell: str, block: int | None, slots: int
) -> tuple[Calibration, Rule]:
    """Ask the probes and derive the rule. Raises OracleError when the oracle cannot answer."""
    block = whole_unit(block or DEFAULT_BLOCK)
    run = secrets.token_hex(4)
    identities: list[str | None] = [None, *digests[:2]]
    prompts = [segment_tokens(run, Segment(f"calibration {i}", length)) for i, length in enumerate(lengths(block))]
    probes = [Question(prompt, identity, TOKENS) for identity in identities for prompt in prompts]
    began = oracle.engine.clock()
    alone = {probe: oracle.ask_anew(probe) for probe in probes}
    latency = (oracle.engine.clock() - began) / len(probes)
    noise, differing = 0.0, 0
    for probe in probes:
        delta, same = compare(alone[probe], oracle.ask_anew(probe))
        noise, differing = max(noise, delta), differing + (not same)
    for identity in identities:
        batch = [probe for probe in probes if probe.adapter == identity]
        for probe, answer in zip(batch, oracle.ask_together(batch), strict=True):
            delta, same = compare(alone[probe], answer)
            noise, differing = max(noise, delta), differing + (not same)
    exact = differing == 0 and noise <= REPEATED_NATS
    rule = Rule(exact=exact, noise=None if exact or math.isinf(noise) else noise)
    band = None if exact else measure_band(oracle, identities, block)
    if isinstance(band, NoiseBand):
        rule = by_scores(band)
    mixtures = {ADAPTERS_TOGETHER: True, BASE_WITH_ADAPTER: True}
    if exact and len(digests) >= 2:
        oracle.fill_slots(slots)
        mixed = side_by_side(identities, prompts)
        alone |= {probe: oracle.ask_anew(probe) for probe in mixed}
        mixtures[ADAPTERS_TOGETHER] = holds(oracle, [p for p in mixed if p.adapter is not None], alone)
        mixtures[BASE_WITH_ADAPTER] = holds(oracle, mixed, alone)
    calibration = Calibration(
        cell=cell,
        oracle=oracle.name,
        rule=str(rule),
        exact=exact,
        noise_nats=rule.noise if rule.band else noise if math.isfinite(noise) else None,
        band=rule.band,
        probes=3 * len(probes),
        differing=differing,
        mixtures=mixtures,
        notes=[*of_noise(band), *notes(oracle, mixtures)],
        latency_seconds=round(latency, 4),
        stall_seconds=round(min(LONGEST_STALL, max(SHORTEST_STALL, STALL_LATENCIES * latency)), 1),
    )
    return calibration, rule


def by_scores(band: NoiseBand) -> Rule:
    """The rule of a band. Where nothing scores an answer, the oracle's lead has to exceed what noise moves."""
    return Rule(exact=False, noise=band.margin_nats, band=band)


def of_noise(band: NoiseBand | str | None) -> list[str]:
    """What a reader has to know of an engine that does not repeat itself."""
    if band is None:
        return []
    if isinstance(band, str):
        return [
            f"Answers are not judged by their scores: {band}. What is left is the oracle's lead at the first token."
        ]
    return [
        f"Cold answers do not repeat bit for bit. {band.positions:,} scores of {band.answers} of them, alone and in "
        f"batches, lie at most {band.all_nats:.3g} nats apart and half of them within "
        f"{band.half_nats:.3g}; at most {band.flips:.2%} of the tokens are others than the cold side would "
        "choose. A fault that moves scores by less than the band is not seen."
    ]


def found_earlier(source: Path, *, cell: str, version: str | None) -> tuple[Calibration, Rule] | None:
    """The rule that another run found, None where it found it in another cell. Raises UsageError where there is none.

    Sound as long as the engine, its model and the machine are the same; of these the version can be checked.
    """
    try:
        results = read_results(source)
    except (OSError, msgspec.MsgspecError) as problem:
        raise UsageError(f"--calibration {source} is no results.json of this version: {problem}") from problem
    found, engine = results.calibration, results.engine
    if found is None or engine is None:
        raise UsageError(f"--calibration {source}: that run found no comparison rule")
    if engine.version != version:
        raise UsageError(f"--calibration {source} is of version {engine.version}; this engine is {version}")
    if is_across(found.oracle):
        raise UsageError(
            f"--calibration {source}: that run compared with {found.oracle}; give one that had the engine itself to "
            "compare with"
        )
    if found.cell != cell:
        return None
    rule = Rule(exact=found.exact, noise=None if found.exact else found.noise_nats, band=found.band)
    note = f"Taken from the run of {results.started}, not found anew."
    return msgspec.structs.replace(found, notes=[*found.notes, note]), rule


def lengths(block: int) -> tuple[int, ...]:
    """Prompt lengths around block boundaries."""
    return (block - 1, 2 * block, 4 * block + 1)


def together(oracle: EngineOracle, batch: list[Question]) -> list[tuple[Question, Answer]]:
    """Ask all of a batch at once."""
    for probe in batch:  # adapters are loaded before, so that the batch really is one
        if probe.adapter is not None:
            oracle.model(probe.adapter)
    with ThreadPoolExecutor(len(batch)) as pool:
        return list(zip(batch, pool.map(oracle.ask_anew, batch), strict=True))


def compare(left: Answer, right: Answer) -> tuple[float, bool]:
    """(largest difference in nats, whether all tokens agree).

    Where tokens part, each side's top-2 gap there is noise too: that much was overcome without any cache. A gap that
    the engine does not tell is as large as can be.
    """
    shared = common_prefix(left.ids, right.ids)
    differences = [
        abs(a.logprob - b.logprob)
        for a, b in zip(left.tokens[:shared], right.tokens[:shared], strict=True)
        if a.logprob is not None and b.logprob is not None
    ]
    if left.ids != right.ids:
        parting = [answer.tokens[shared].gap for answer in (left, right) if shared < len(answer.tokens)]
        differences += [math.inf if gap is None else gap for gap in parting]
    return max(differences, default=0.0), left.ids == right.ids


def side_by_side(identities: list[str | None], prompts: list[tuple[int, ...]]) -> list[Question]:
    """Probes for one mixed batch: kinds in turn, and answers long enough that late arrivals still meet early ones."""
    return [Question(prompt, identity, MIXED_TOKENS) for prompt in prompts for identity in reversed(identities)]


def holds(oracle: EngineOracle, batch: list[Question], alone: dict[Question, Answer]) -> bool:
    """Whether a mixture answers as alone, over several rounds."""
    return all(alone[probe].ids == answer.ids for _ in range(ROUNDS) for probe, answer in together(oracle, batch))


def notes(oracle: EngineOracle, mixtures: dict[str, bool]) -> list[str]:
    """What a reader of the verdicts has to know."""
    said = [
        f"Requests of the mixture '{mixture}' answer otherwise side by side than alone, without any cache: "
        "see GROUND-1. Other requirements run without this mixture."
        for mixture, holds_true in mixtures.items()
        if not holds_true
    ]
    if oracle.salted:
        said.append("The same-engine oracle bypasses the cache by unused salts: it cannot see salts being ignored.")
    return said
