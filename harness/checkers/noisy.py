"""Answers of an engine that is not bit-stable: what noise explains, and what it does not.

Three things tell a wrong answer from a noisy one. Its tokens' scores lie outside the band that the calibration found
for cold answers, with or without another token. The cold side puts a token of it further behind another than noise
ever moved them. Or it is, token for token, a known wrong answer, and parts from the cold side's own choice so often
that noise is no explanation: this needs no threshold in nats.
"""

from __future__ import annotations

import math

from harness.checkers.deviation import Deviation, deviation, places
from harness.history import History, Outcome
from harness.oracle.base import Answers, forced, question
from reports.schema import FailureClass, NoiseBand

MATCHED = (FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST)  # token for token a known wrong answer
LEAST_FLIPS = 4  # of a match that is to prove anything; two tokens may agree by chance


def measured(history: History, outcome: Outcome, answers: Answers, band: NoiseBand) -> Deviation | None:
    """How far an answer lies from the nearest cold start that it may have been; None where none scored it."""
    longest = history.shape.max_model_tokens
    found = []
    for identity in outcome.identities:
        asked = forced(outcome, identity, longest=longest)
        scored = None if asked is None else answers.get(asked)
        own = answers.get(question(outcome, identity))
        one = None if scored is None else deviation(places(outcome.tokens, len(outcome.prompt), scored, own))
        if one is not None:
            found.append(one)
    return min(found, key=lambda one: excess(one, band), default=None)


def excess(one: Deviation, band: NoiseBand) -> float:
    """The deviation in units of what the band allows: above 1 it is no noise."""
    shares = [
        share(one.score, band.score_nats),
        share(one.margin, band.margin_nats),
    ]
    return max(shares)


def share(nats: float | None, allowed: float) -> float:
    """Of what is allowed; nothing is allowed where the calibration saw no noise at all."""
    if nats is None or nats == 0.0:
        return 0.0
    return nats / allowed if allowed else math.inf


def flips_needed(band: NoiseBand) -> int | None:
    """So many tokens that the cold side would not have chosen noise alone does not bring, but at the error rate."""
    if band.flips >= 1:
        return None
    if band.flips <= 0:
        return LEAST_FLIPS
    return max(LEAST_FLIPS, math.ceil(math.log(band.error_rate) / math.log(band.flips)))


def beyond_chance(one: Deviation, band: NoiseBand) -> bool:
    """Whether an answer parts so often from the cold side's choice that a match with a known wrong one proves it."""
    needed = flips_needed(band)
    return needed is not None and one.flips >= needed


def too_short_or_long(outcome: Outcome, cold: tuple[int, ...]) -> bool:
    """Whether an answer has another length than any right one: noise chooses tokens, and never how many. A stop string
    may end it anywhere, but not behind tokens that did not end the cold one.
    """
    mine = outcome.token_ids
    if outcome.surface.stop:
        shorter = min(len(mine), len(cold))
        return outcome.answered and len(mine) != len(cold) and mine[:shorter] == cold[:shorter]
    return outcome.answered and len(mine) != outcome.max_tokens


def in_words(one: Deviation, band: NoiseBand) -> str:
    """The deviation for a sentence: the larger of the two, and what the band allows."""
    by_score = share(one.score, band.score_nats) >= share(one.margin, band.margin_nats)
    if by_score and one.score is not None:
        return (
            f"at token {one.score_at} its own score and the cold side's of the same token lie {one.score:.3g} nats "
            f"apart (noise reaches {band.score_nats:.3g})"
        )
    return (
        f"the cold side puts its token {one.margin_at} {one.margin or 0.0:.3g} nats further behind another than it "
        f"does itself (noise reaches {band.margin_nats:.3g})"
    )
