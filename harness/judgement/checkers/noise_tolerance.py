"""Decides whether noise explains the answer of a nondeterministic engine.

Three things distinguish a wrong answer from a noisy one. The scores of its tokens lie outside the tolerance that the
calibration measured for cold answers. Or the cold engine prefers another token by a larger margin than the tolerance.
Or the answer equals a known wrong answer, and differs from the cold engine's choice at more tokens than noise explains;
this needs no threshold in nats.

The cold engine scores the answer in one prefill of the prompt and the answer. Each token is scored after the same
tokens as in the warm engine, so that one token that differs does not affect the scores of later ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from coldproof.adapters.protocol.requests import Token, ids_of
from coldproof.harness.history.records import History, Outcome, common_prefix
from coldproof.harness.judgement.oracle import Answer, Answers, question, scoring_question
from coldproof.harness.schema.case import NoiseBand
from coldproof.harness.schema.verdict import FailureClass

MATCHED = (FailureClass.STALE_STATE, FailureClass.CROSS_REQUEST)  # the answer equals a known wrong answer
LEAST_FLIPS = 4  # differing tokens of a match that proves anything; fewer may agree by chance


class Place(msgspec.Struct, frozen=True):
    """One token of an answer.

    `score`: the difference between the two sides' logprobs, in nats. `margin`: by how many nats the cold engine prefers
    another token, plus the warm engine's own top-2 margin if known; 0 if it prefers the same one. None: unknown.
    """

    position: int
    score: float | None
    margin: float | None

    @property
    def flipped(self) -> bool:
        """Return whether the cold engine prefers another token."""
        return self.margin is not None and self.margin > 0


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """The largest score and margin deviation of an answer and their positions. None: unknown."""

    score: float | None
    score_at: int
    margin: float | None
    margin_at: int
    flips: int
    places: int


def places(tokens: Sequence[Token], length: int, forced: Answer, own: Answer | None = None) -> list[Place]:
    """Compare an answer's tokens after a prompt of `length` tokens with the cold scores in `forced`.

    `own`: the cold engine's own answer. It gives the best token's logprob at each position up to the first divergence
    where `forced` does not report it. What neither of them reports is unknown.
    """
    cold = forced.prompt_logprobs or ()
    reported = forced.prompt_best or ()
    shared = 0 if own is None else common_prefix(own.ids, ids_of(tokens))
    chosen = () if own is None else tuple(token.logprob for token in own.tokens[: shared + 1])
    found = []
    for position, token in enumerate(tokens):
        at = length + position
        score = cold[at] if at < len(cold) else None
        if score is None:
            continue
        top = reported[at] if at < len(reported) else None
        if top is None and position < len(chosen):
            top = chosen[position]
        behind = None if top is None else max(0.0, top - score)
        apart = None if token.logprob is None else abs(token.logprob - score)
        found.append(Place(position, apart, behind + (token.gap or 0.0) if behind else behind))
    return found


def deviation(found: Sequence[Place]) -> Deviation | None:
    """Return the largest deviations; None if the cold engine scored no token."""
    if not found:
        return None
    by_score = max(found, key=lambda place: -1.0 if place.score is None else place.score)
    by_margin = max(found, key=lambda place: -1.0 if place.margin is None else place.margin)
    return Deviation(
        score=by_score.score,
        score_at=by_score.position,
        margin=by_margin.margin,
        margin_at=by_margin.position,
        flips=sum(place.flipped for place in found),
        places=len(found),
    )


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
    return max(share(one.score, band.score_nats), share(one.margin, band.margin_nats))


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
    if outcome.options.stop:
        shorter = min(len(tokens), len(cold))
        return outcome.answered and len(tokens) != len(cold) and tokens[:shorter] == cold[:shorter]
    return outcome.answered and len(tokens) != outcome.max_tokens


def describe_deviation(one: Deviation, band: NoiseBand) -> str:
    """Describe the larger deviation, of the score or of the margin, and its tolerance."""
    by_score = share(one.score, band.score_nats) >= share(one.margin, band.margin_nats)
    if by_score and one.score is not None:
        differs = f"its logprob differs by {one.score:.3g} nats from the cold engine's logprob of the same token"
        return f"at token {one.score_at} {differs} (tolerance {band.score_nats:.3g})"
    margin = f"with a margin difference of {one.margin or 0.0:.3g} nats (tolerance {band.margin_nats:.3g})"
    return f"at token {one.margin_at} the cold engine prefers another token, {margin}"
