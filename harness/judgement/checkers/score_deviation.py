"""Measures how far an answer's scores differ from the scores that a cold engine gives to the same tokens.

The cold engine scores the answer in one prefill of the prompt and the answer. Each token is scored after the same
tokens as in the warm engine, so that one token that differs does not affect the scores of later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coldproof.adapters.protocol.requests import Token
from coldproof.harness.history.computed_tokens import common_prefix
from coldproof.harness.judgement.oracle import Answer


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

    `own`: the cold engine's own answer. It gives the best token's logprob at each position up to the first divergence,
    if `forced` does not report it.
    """
    cold = forced.prompt_logprobs or ()
    best: Sequence[float | None] = forced.prompt_best or ()
    if not best and own is not None:
        shared = common_prefix(own.ids, tuple(token.id for token in tokens))
        best = [*[None] * length, *(token.logprob for token in own.tokens[: shared + 1])]
    found = []
    for position, token in enumerate(tokens):
        at = length + position
        score = cold[at] if at < len(cold) else None
        if score is None:
            continue
        top = best[at] if at < len(best) else None
        behind = None if top is None else max(0.0, top - score)
        lead = token.gap or 0.0
        found.append(
            Place(
                position,
                None if token.logprob is None else abs(token.logprob - score),
                behind + lead if behind else behind,
            )
        )
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
