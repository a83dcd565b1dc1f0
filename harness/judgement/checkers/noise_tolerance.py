"""Decides whether noise explains the answer of a nondeterministic engine.

Three things distinguish a wrong answer from a noisy one. The scores of its tokens lie outside the tolerance that the
calibration measured for cold answers. Or the cold engine prefers another token by a larger margin than the tolerance.
Or the answer equals a known wrong answer, and differs from the cold engine's choice at more tokens than noise explains;
this needs no threshold in nats.
"""

from __future__ import annotations

import math

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.score_deviation import Deviation, deviation, places
from coldproof.harness.judgement.oracle import Answers, question, scoring_question
from coldproof.reports.schema.case import NoiseBand
from coldproof.reports.schema.verdict import FailureClass

MATCHED = (FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST)  # the answer equals a known wrong answer
LEAST_FLIPS = 4  # differing tokens of a match that proves anything; fewer may agree by chance


def measure_deviation(history: History, outcome: Outcome, answers: Answers, band: NoiseBand) -> Deviation | None:
    """Return an answer's deviation from the nearest allowed cold answer; None if no cold engine scored it."""
    longest = history.shape.max_model_tokens
    found = []
    for identity in outcome.identities:
        asked = scoring_question(outcome, identity, longest=longest)
        scored = None if asked is None else answers.get(asked)
        own = answers.get(question(outcome, identity))
        one = None if scored is None else deviation(places(outcome.tokens, len(outcome.prompt), scored, own))
        if one is not None:
            found.append(one)
    return min(found, key=lambda one: excess(one, band), default=None)


def excess(one: Deviation, band: NoiseBand) -> float:
    """Return the deviation in units of the tolerance: above 1 it exceeds the tolerance."""
    shares = [
        share(one.score, band.score_nats),
        share(one.margin, band.margin_nats),
    ]
    return max(shares)


def share(nats: float | None, allowed: float) -> float:
    """Return `nats` in units of the allowed value; inf for any difference if the calibration measured no noise."""
    if nats is None or nats == 0.0:
        return 0.0
    return nats / allowed if allowed else math.inf


def flips_needed(band: NoiseBand) -> int | None:
    """Return how many differing tokens noise explains only at the error rate; None if noise explains any number."""
    if band.flips >= 1:
        return None
    if band.flips <= 0:
        return LEAST_FLIPS
    return max(LEAST_FLIPS, math.ceil(math.log(band.error_rate) / math.log(band.flips)))


def beyond_chance(one: Deviation, band: NoiseBand) -> bool:
    """Return whether so many tokens differ from the cold engine's choice that a match with a wrong answer proves it."""
    needed = flips_needed(band)
    return needed is not None and one.flips >= needed


def too_short_or_long(outcome: Outcome, cold: tuple[int, ...]) -> bool:
    """Return whether an answer has a length that noise does not explain: noise changes tokens, not their number.

    A stop string may end an answer anywhere, but not after tokens at which the cold answer went on.
    """
    tokens = outcome.token_ids
    if outcome.surface.stop:
        shorter = min(len(tokens), len(cold))
        return outcome.answered and len(tokens) != len(cold) and tokens[:shorter] == cold[:shorter]
    return outcome.answered and len(tokens) != outcome.max_tokens


def describe_deviation(one: Deviation, band: NoiseBand) -> str:
    """Describe the larger deviation, of the score or of the margin, and its tolerance."""
    by_score = share(one.score, band.score_nats) >= share(one.margin, band.margin_nats)
    if by_score and one.score is not None:
        return (
            f"at token {one.score_at} its logprob differs by {one.score:.3g} nats from the cold engine's logprob of "
            f"the same token (tolerance {band.score_nats:.3g})"
        )
    return (
        f"at token {one.margin_at} the cold engine prefers another token, with a margin difference of "
        f"{one.margin or 0.0:.3g} nats (tolerance {band.margin_nats:.3g})"
    )
