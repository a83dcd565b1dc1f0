"""How far an answer lies from what a cold start makes of the very same tokens.

The cold side is forced along the answer: one prefill of the prompt and all the answer's tokens scores each of them
behind the same tokens that the warm side saw, so that a token that went the other way spoils nothing behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adapters.base import Token
from harness.oracle.base import Answer
from harness.tokens_computed import common_prefix


class Place(msgspec.Struct, frozen=True):
    """One token of an answer: how far both sides' scores of it lie apart, and by how much the cold side prefers another
    one, each with the other side's lead added where it tells one. None: not told.
    """

    position: int
    score: float | None
    margin: float | None

    @property
    def flipped(self) -> bool:
        """Whether the cold side prefers another token."""
        return self.margin is not None and self.margin > 0


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """The largest of an answer, and where; None: nothing was told of it."""

    score: float | None
    score_at: int
    margin: float | None
    margin_at: int
    flips: int
    places: int


def places(tokens: Sequence[Token], length: int, forced: Answer, own: Answer | None = None) -> list[Place]:
    """An answer's tokens behind a prompt of so many, against the cold side's scores of them. `own`: the cold side's own
    answer, whose tokens are its best for as long as the text before them is the same.
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
    """The largest of them; None where the cold side scored nothing."""
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
