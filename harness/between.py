"""How far two engines lie apart, both cold: what a comparison of their answers has to allow for.

Each adds up in its own order, so scores differ in their last digits and a close call may go either way. What lies
further apart than that is no noise: then one engine is wrong without any cache, or the two do not serve the same
weights, and nothing that the cache does can be told from it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from harness.calibration import lengths
from harness.checkers.finding import Rule
from harness.generators.prompts import DEFAULT_BLOCK, whole_unit
from harness.oracle.base import Answer, Question
from harness.oracle.engine import EngineOracle
from harness.oracle.other import room, told, with_gaps
from harness.tokens_computed import common_prefix
from harness.workload import Segment, segment_tokens
from reports.schema import Calibration

TOKENS = 24
LONGEST = 1024  # noise grows with the prompt, and the longest are what nobody can ask often
# The largest of some hundred differences is not the largest of all. Between llama.cpp and OpenVINO GenAI, both in
# float32, 99 % of 5,040 scores were within 0.0001 nats and all within 0.0004; with half-precision KV 0.02 and 0.09. One
# token in five hundred has a runner-up within 0.002 nats.
TIMES, LEAST = 4, 0.002
# Half precision comes to less; an adapter that is not applied to several times as much.
APART = 0.2


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """How far two answers to a question lie apart: the largest difference of scores while the tokens agree or, where
    they part, the gap that was overcome there. None: neither was told."""

    nats: float | None
    parted: int | None  # the position of the first token that differs
    scored: bool  # whether both told scores


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A question with both engines' answers."""

    asked: Question
    mine: Answer
    theirs: Answer
    told: bool  # whether the other engine said itself how sure it was

    @property
    def distance(self) -> Distance:
        """Between the two."""
        return distance(self.mine, self.theirs)


def calibrate_between(
    own: EngineOracle,
    other: EngineOracle,
    contents: dict[str, str],
    *,
    name: str,
    block: int | None,
    found: Calibration,
) -> tuple[Calibration, Rule]:
    """The rule for comparing an engine with another one. Raises OracleError when one of them cannot answer.

    `own` is the engine's own cold oracle, of which `found` is known already; `contents`: digest -> name in reports.
    """
    most = min(room(oracle.engine) for oracle in (own, other)) - TOKENS
    run = secrets.token_hex(4)
    sizes = sorted({min(length, most) for length in (*lengths(whole_unit(block or DEFAULT_BLOCK)), LONGEST)})
    prompts = [segment_tokens(run, Segment(f"between {i}", length)) for i, length in enumerate(sizes)]
    asked = [Question(prompt, identity, TOKENS) for identity in (None, *contents) for prompt in prompts]
    probes = [probe(own, other, one) for one in asked]
    far = {
        under(contents.get(identity or "")): words
        for identity in (None, *contents)
        if (words := difference(probes, identity, name))
    }
    rule = rule_between(probes, found, name=name, far=list(far))
    calibration = msgspec.structs.replace(
        found,
        oracle=name,
        rule=str(rule),
        exact=False,
        noise_nats=rule.noise,
        band=None,
        probes=len(probes),
        differing=sum(one.distance.parted is not None for one in probes),
        notes=[*notes(probes, found, name=name, far=far), *found.notes],
    )
    return calibration, rule


def probe(own: EngineOracle, other: EngineOracle, asked: Question) -> Probe:
    """Ask both. Where the other does not tell how sure it was, the engine's own word is taken for it."""
    mine, theirs = own.ask_anew(asked), other.ask_anew(asked)
    known = told(theirs)
    return Probe(asked=asked, mine=mine, theirs=theirs if known else with_gaps(theirs, mine), told=known)


def rule_between(probes: list[Probe], found: Calibration, *, name: str, far: list[str]) -> Rule:
    """What counts, given how far the engines lie apart and how well the one under test repeats itself."""
    seen = [one.distance for one in probes]
    if far:
        return Rule(exact=False, why=f"the engine under test and {name} differ cold {', '.join(far)}")
    if any(one.nats is None for one in seen) or not any(told(one.theirs) for one in probes):
        return Rule(exact=False, why=f"neither the engine under test nor {name} tells how sure it is of a token")
    if found.noise_nats is None:
        return Rule(exact=False, why="the engine under test does not repeat its cold answers, by nobody knows how much")
    most = max(found.noise_nats, *(one.nats or 0.0 for one in seen))
    return Rule(exact=False, noise=max(LEAST, TIMES * most) if measured(probes) else APART)


def measured(probes: list[Probe]) -> bool:
    """Whether both engines tell scores; otherwise only what would be too much is known."""
    return any(one.distance.scored for one in probes)


def notes(probes: list[Probe], found: Calibration, *, name: str, far: dict[str, str]) -> Iterator[str]:
    """What a reader of the verdicts has to know."""
    seen = max((one.distance.nats or 0.0 for one in probes), default=0.0)
    for who, words in far.items():
        yield f"{who[0].upper()}{who[1:]} {words}."
    if far:
        yield (
            "One of the two engines is wrong without any cache, or they do not serve the same weights in float32: "
            f"nothing follows from {name}'s answers. For what the cache does, leave out --oracle."
        )
    elif not measured(probes):
        yield f"One of the engines tells no scores by which to measure noise: {APART} nats are allowed for."
    else:
        yield (
            f"Both cold, the engine under test and {name} lie at most {seen:.2g} nats apart in {len(probes)} answers; "
            f"{TIMES} times that is allowed for, and no less than {LEAST} nats."
        )
        if seen > LEAST:
            yield "In float32 two engines lie closer than that: one is not, or adds up what it should not."
    if not all(one.told for one in probes):
        yield f"{name} does not say how sure it is of a token: the engine's own cold one says so of the same text."
    yield f"The engine's own cold answers: {found.rule}. They are what GROUND-1 is judged by."
    yield "For what is not plain greedy text, and for prompts too long for the other engine, its own is asked."


def difference(probes: list[Probe], identity: str | None, name: str) -> str:
    """How the engines differ under an identity where they lie further apart than noise explains; otherwise nothing."""
    mine = [one for one in probes if one.asked.adapter == identity and (one.distance.nats or 0.0) > APART]
    if not mine:
        return ""
    worst = max(mine, key=lambda one: one.distance.nats or 0.0)
    apart = worst.distance
    where = "scores lie" if apart.parted is None else f"answers part at token {apart.parted}, where they lie"
    length = len(worst.asked.prompt)
    words = f"{len(mine)} answers differ: to a prompt of {length} tokens {where} {apart.nats:.2g} nats apart"
    base = {one.asked.prompt: one for one in probes if one.asked.adapter is None}
    if identity is not None and all(one.mine.ids == base[one.asked.prompt].mine.ids for one in mine):
        words += "; the engine under test answers as without the adapter"
    if identity is not None and all(one.theirs.ids == base[one.asked.prompt].theirs.ids for one in mine):
        words += f"; {name} answers as without the adapter"
    return words


def under(content: str | None) -> str:
    """An adapter content in a sentence."""
    return "without any adapter" if content is None else f"under adapter {content}"


def distance(mine: Answer, theirs: Answer) -> Distance:
    """How far two answers lie apart. An engine that tells no scores is taken at the other's word."""
    shared = common_prefix(mine.ids, theirs.ids)
    told = [
        abs(a.logprob - b.logprob)
        for a, b in zip(mine.tokens[:shared], theirs.tokens[:shared], strict=True)
        if a.logprob is not None and b.logprob is not None
    ]
    if mine.ids == theirs.ids:
        return Distance(nats=max(told, default=0.0), parted=None, scored=bool(told))
    parting = [answer.tokens[shared].gap for answer in (mine, theirs) if shared < len(answer.tokens)]
    gaps = [gap for gap in parting if gap is not None]
    return Distance(nats=max([*told, *gaps]) if gaps else None, parted=shared, scored=bool(told))
