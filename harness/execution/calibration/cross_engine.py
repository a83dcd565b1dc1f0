"""Measures how much the cold answers of two engines differ, to find the rule for comparing them.

Each engine adds numbers in its own order, so that scores differ in their last digits, and two nearly equal tokens may
swap. A larger difference is no noise: then one engine is wrong without any cache, or the two do not serve the same
weights, and their answers cannot show what the cache does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from coldproof.harness.execution.calibration.calibrate import lengths
from coldproof.harness.execution.calibration.progress import SILENT, Progress
from coldproof.harness.execution.calibration.repeats import score_differences
from coldproof.harness.execution.oracles.cross_engine import has_scores, room, with_gaps
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.history.records import common_prefix
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answer, Question
from coldproof.harness.schema.results import Calibration
from coldproof.harness.workload.generators.prompts import DEFAULT_BLOCK, whole_unit
from coldproof.harness.workload.steps import Segment
from coldproof.harness.workload.tokens import segment_tokens

TOKENS = 24
LONGEST = 1024  # tokens of the longest prompt: noise grows with the length, but long prompts are slow
# The largest of a few hundred differences is not the largest possible. Between llama.cpp and OpenVINO GenAI, both in
# float32, 99 % of 5,040 scores differed by at most 0.0001 nats and all by at most 0.0004; with half-precision KV by
# 0.02 and 0.09. One token in five hundred has a top-2 margin below 0.002 nats.
TIMES, LEAST = 4, 0.002
# In nats. Half precision stays below it; an adapter that is not applied exceeds it several times.
APART = 0.2


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two answers, in nats: the largest difference of logprobs up to the first token that
    differs, or the top-2 margin at that token if it is larger. None: unknown.
    """

    nats: float | None
    parted: int | None  # the position of the first token that differs
    scored: bool  # whether both engines report logprobs


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A question with the answers of both engines."""

    question: Question
    mine: Answer
    theirs: Answer
    scored: bool  # whether the other engine reports top-2 margins

    @property
    def distance(self) -> Distance:
        """Return the difference between the two answers."""
        return distance(self.mine, self.theirs)


def calibrate_between(
    own: EngineOracle,
    other: EngineOracle,
    contents: dict[str, str],
    *,
    name: str,
    block: int | None,
    found: Calibration,
    progress: Progress = SILENT,
) -> tuple[Calibration, Rule]:
    """Return the calibration and the rule for comparing an engine with another one.

    `own`: the engine's own cold oracle, and `found` its calibration. `contents`: adapter digest -> name in reports.
    Raises OracleError if one of the engines cannot answer.
    """
    most = min(room(oracle.engine) for oracle in (own, other)) - TOKENS
    run = secrets.token_hex(4)
    sizes = sorted({min(length, most) for length in (*lengths(whole_unit(block or DEFAULT_BLOCK)), LONGEST)})
    prompts = [segment_tokens(run, Segment(f"between {i}", length)) for i, length in enumerate(sizes)]
    questions = [Question(prompt, identity, TOKENS) for identity in (None, *contents) for prompt in prompts]
    with progress.counting(f"comparing with {name}", own, other, of=2 * len(questions)):
        probes = [probe(own, other, one) for one in questions]
    far = {
        under(contents.get(identity or "")): words
        for identity in (None, *contents)
        if (words := difference(probes, identity, name))
    }
    rule = msgspec.structs.replace(rule_between(probes, found, name=name, far=list(far)), rounding=0.0, cold=found.cold)
    calibration = msgspec.structs.replace(
        found,
        oracle=name,
        rule=str(rule),
        exact=False,
        noise_nats=rule.noise,
        band=None,
        rounding=rule.rounding,
        probes=len(probes),
        differing=sum(one.distance.parted is not None for one in probes),
        notes=[*notes(probes, found, name=name, far=far), *found.notes],
    )
    return calibration, rule


def probe(own: EngineOracle, other: EngineOracle, question: Question) -> Probe:
    """Query both engines. If the other one reports no top-2 margins, use those of the engine's own answer."""
    mine, theirs = own.ask_without_memo(question), other.ask_without_memo(question)
    known = has_scores(theirs)
    return Probe(question=question, mine=mine, theirs=theirs if known else with_gaps(theirs, mine), scored=known)


def rule_between(probes: list[Probe], found: Calibration, *, name: str, far: list[str]) -> Rule:
    """Return the rule. `far`: the identities under which the engines differ by more than noise."""
    seen = [one.distance for one in probes]
    if far:
        return Rule(exact=False, why=f"the cold answers of the engine under test and {name} differ {', '.join(far)}")
    if any(one.nats is None for one in seen) or not any(has_scores(one.theirs) for one in probes):
        return Rule(exact=False, why=f"neither the engine under test nor {name} reports top-2 logprobs")
    if found.noise_nats is None:
        return Rule(exact=False, why="the engine under test is nondeterministic by an unknown amount")
    most = max(found.noise_nats, *(one.nats or 0.0 for one in seen))
    return Rule(exact=False, noise=max(LEAST, TIMES * most) if measured(probes) else APART)


def measured(probes: list[Probe]) -> bool:
    """Return whether both engines report logprobs, so that noise could be measured."""
    return any(one.distance.scored for one in probes)


def notes(probes: list[Probe], found: Calibration, *, name: str, far: dict[str, str]) -> Iterator[str]:
    """Yield notes for the reader of the verdicts. `far`: identity -> how the engines differ under it."""
    seen = max((one.distance.nats or 0.0 for one in probes), default=0.0)
    for who, words in far.items():
        yield f"{who[0].upper()}{who[1:]} {words}."
    if far:
        yield (
            "One of the two engines is wrong without any cache, or they do not serve the same weights in float32, so "
            f"the answers of {name} cannot be used. To test the cache, omit --oracle."
        )
    elif not measured(probes):
        yield f"One of the engines reports no scores to measure noise by: the tolerance is {APART} nats."
    else:
        yield (
            f"The cold answers of the engine under test and {name} differ by at most {seen:.2g} nats in "
            f"{len(probes)} answers; the tolerance is {TIMES} times that, and at least {LEAST} nats."
        )
        if seen > LEAST:
            yield "Two engines in float32 differ by less: one of them uses lower precision or computes wrongly."
    if not all(one.scored for one in probes):
        yield f"{name} reports no top-2 margins; those of the engine's own cold answers are used."
    yield f"The engine's own cold answers, by which GROUND-1 is judged: {found.rule}."
    yield (
        "The engine's own cold oracle answers requests that are not plain greedy text, and prompts too long for the "
        "other engine."
    )


def difference(probes: list[Probe], identity: str | None, name: str) -> str:
    """Describe how the engines differ under an identity by more than noise explains; "" if they do not."""
    mine = [one for one in probes if one.question.adapter == identity and (one.distance.nats or 0.0) > APART]
    if not mine:
        return ""
    worst = max(mine, key=lambda one: one.distance.nats or 0.0)
    apart = worst.distance
    where = "" if apart.parted is None else f" at token {apart.parted}, where the answers diverge"
    length = len(worst.question.prompt)
    words = f"{len(mine)} answers differ, for a prompt of {length} tokens by {apart.nats:.2g} nats{where}"
    base = {one.question.prompt: one for one in probes if one.question.adapter is None}
    if identity is not None and all(one.mine.ids == base[one.question.prompt].mine.ids for one in mine):
        words += "; the engine under test gives the answers of the base model"
    if identity is not None and all(one.theirs.ids == base[one.question.prompt].theirs.ids for one in mine):
        words += f"; {name} gives the answers of the base model"
    return words


def under(content: str | None) -> str:
    """Describe an adapter content for a sentence."""
    return "without any adapter" if content is None else f"under adapter {content}"


def distance(mine: Answer, theirs: Answer) -> Distance:
    """Return the difference between two answers. If only one engine reports a top-2 margin, use that one."""
    deltas, margins = score_differences(mine, theirs)
    if mine.ids == theirs.ids:
        return Distance(nats=max(deltas, default=0.0), parted=None, scored=bool(deltas))
    gaps = [gap for gap in margins if gap is not None]
    parted = common_prefix(mine.ids, theirs.ids)
    return Distance(nats=max([*deltas, *gaps]) if gaps else None, parted=parted, scored=bool(deltas))
