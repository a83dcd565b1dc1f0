"""How far an engine's scores move of themselves, without any cache: the band that warm answers are judged by.

Asked only where the few probes of the calibration do not repeat. Many prompts are answered alone and in batches of two
sizes, around block boundaries and up to a thousand tokens. Each answer is then judged as a warm one is going to be: one
prefill of prompt and answer scores its tokens, which were computed one by one over keys and values that decode wrote.
No way to split a prompt into chunks is further from another than these two.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator

import msgspec

from adapters.base import Capability, Token
from harness.checkers.deviation import places
from harness.oracle.base import SCORED, Answer, Question
from harness.oracle.engine import EngineOracle
from harness.oracle.other import room
from harness.tail import Tail, fitted, quantile
from harness.tokens_computed import common_prefix
from harness.workload import Segment, segment_tokens
from reports.schema import NoiseBand

PROMPTS, TOKENS, LONGEST = 48, 24, 1024
BATCHES = (4, 16)
# One false alarm in a million requests: none is to be expected in a qualification of a hundred thousand.
ERROR_RATE = 1e-6
LONGEST_ANSWER = 64  # tokens whose scores are looked at, each of which may be the one that strays
COMPARISONS = 3  # of a token: its score, its margin, its score as a prompt's
NEEDED = (Capability.LOGPROBS, Capability.PROMPT_LOGPROBS)


class Samples(msgspec.Struct):
    """Differences in nats between two cold computations of the same thing, and how often they chose otherwise."""

    scores: list[float] = msgspec.field(default_factory=list)
    margins: list[float] = msgspec.field(default_factory=list)
    prompts: list[float] = msgspec.field(default_factory=list)
    flips: int = 0
    positions: int = 0
    answers: int = 0


def measure_band(oracle: EngineOracle, identities: list[str | None], block: int) -> NoiseBand | str:
    """The band, or why answers cannot be judged by their scores. Raises OracleError when the oracle cannot answer."""
    for need in NEEDED:
        support = oracle.engine.capabilities[need]
        if support.present is not True:
            return f"the engine gives no {need.value} ({support.evidence})"
    return band_of(sampled(oracle, identities, block))


def sampled(oracle: EngineOracle, identities: list[str | None], block: int) -> Samples:
    """Ask everything. Requests of one batch are under one identity: mixtures are GROUND-1's matter."""
    found = Samples()
    run = secrets.token_hex(4)
    most = room(oracle.engine) - TOKENS - 1
    lengths = [min(length, most) for length in (block - 1, 2 * block, 4 * block + 1, 9 * block, LONGEST)]
    each = -(-PROMPTS // len(identities))
    for number, identity in enumerate(identities):
        asked = [
            Question(segment_tokens(run, Segment(f"noise {number}.{i}", length)), identity, TOKENS)
            for i, length in zip(range(each), itertools.cycle(lengths), strict=False)
        ]
        drawn = [[oracle.ask_anew(question) for question in asked]]
        for size in BATCHES:
            drawn.append([answer for batch in in_batches(asked, size) for answer in oracle.ask_together(batch)])
        for answers in drawn:
            note(oracle, asked, answers, found)
        for one, other in itertools.combinations(drawn, 2):
            for mine, yours in zip(one, other, strict=True):
                found.margins += leads_apart(mine.tokens, yours.tokens)
    return found


def note(oracle: EngineOracle, asked: list[Question], answers: list[Answer], found: Samples) -> None:
    """Have each answer's tokens scored alone and in company, and add what lies between."""
    forced = [
        Question((*question.prompt, *answer.ids), question.adapter, 1, SCORED)
        for question, answer in zip(asked, answers, strict=True)
    ]
    alone = [oracle.ask_anew(question) for question in forced]
    beside = [a for batch in in_batches(forced, BATCHES[0]) for a in oracle.ask_together(batch)]
    for question, answer, first, second in zip(asked, answers, alone, beside, strict=True):
        found.answers += 1
        for scored in (first, second):
            for place in places(answer.tokens, len(question.prompt), scored):
                found.positions += 1
                found.flips += place.flipped
                found.scores += [] if place.score is None else [place.score]
                found.margins += [place.margin] if place.margin else []
        length = len(question.prompt)
        found.prompts += list(apart(first.prompt_logprobs or (), second.prompt_logprobs or (), length))


def apart(mine: tuple[float | None, ...], other: tuple[float | None, ...], length: int) -> Iterator[float]:
    """Between two scores of each of a prompt's tokens."""
    for a, b in zip(mine[:length], other[:length], strict=True):
        if a is not None and b is not None:
            yield abs(a - b)


def leads_apart(mine: tuple[Token, ...], other: tuple[Token, ...]) -> list[float]:
    """Between the leads of the best tokens over the second; where they change places, what was overcome on both sides
    together. Behind that the texts differ.
    """
    shared = common_prefix(tuple(t.id for t in mine), tuple(t.id for t in other))
    pairs = list(zip(mine, other, strict=False))
    found = [abs(a.gap - b.gap) for a, b in pairs[:shared] if a.gap is not None and b.gap is not None]
    for a, b in pairs[shared : shared + 1]:
        found += [a.gap + b.gap] if a.gap is not None and b.gap is not None else []
    return found


def band_of(found: Samples) -> NoiseBand | str:
    """The band by the tails of the samples, or why there is none."""
    tails = [fitted(values) for values in (found.scores, found.margins, found.prompts)]
    known = [tail for tail in tails if isinstance(tail, Tail)]
    if len(known) < len(tails):
        return next(tail for tail in tails if isinstance(tail, str))
    rate = ERROR_RATE / (COMPARISONS * LONGEST_ANSWER)
    score, margin, prompt = (rounded_up(tail.beyond(rate)) for tail in known)
    seen = found.flips + 3 + 2 * math.sqrt(found.flips)  # the upper end of what so many stand for
    half, most, every = (float(f"{quantile(found.scores, share):.3g}") for share in (0.5, 0.99, 1.0))
    return NoiseBand(
        score_nats=score,
        margin_nats=margin,
        prompt_nats=prompt,
        error_rate=ERROR_RATE,
        positions=len(found.scores),
        answers=found.answers,
        flips=round(min(1.0, seen / found.positions), 6),
        half_nats=half,
        most_nats=most,
        all_nats=every,
    )


def in_batches(asked: list[Question], size: int) -> Iterator[list[Question]]:
    """So many at a time."""
    return (asked[start : start + size] for start in range(0, len(asked), size))


def rounded_up(nats: float) -> float:
    """Three digits are all that can be known, and the doubt is the band's."""
    if nats == 0.0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(nats)) - 2)
    return float(f"{math.ceil(nats / unit) * unit:.6g}")
