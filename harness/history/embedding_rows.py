"""What the prompts of a history carry at each position: a token id, an embedding row, and which of both the model sees.

Engines find cached blocks by keys. Two prompts whose blocks differ only in a row, or only in which positions are rows,
need keys that differ. This module finds such pairs.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

from coldproof.adapters.protocol.embedding_rows import NO_ROW, ZERO_ROW, has_rows, is_row
from coldproof.harness.history.records import History, Outcome, assumed_block, common_prefix


class Place(NamedTuple):
    """A position of a prompt. `shown`: the model gets the row."""

    token: int
    row: int
    shown: bool


class Difference(enum.StrEnum):
    """In what the first different block of two prompts differs."""

    ROWS = "other rows"
    MASK = "other positions of the same rows"
    MASK_OVER_ZEROS = "other positions of the same rows, token ids 0"


def places(outcome: Outcome, start: int, end: int) -> list[Place]:
    """Return what a prompt with rows carries from position `start` to `end`."""
    seen, hidden = outcome.prompt[start:end], outcome.hidden[start:end]
    pairs = zip(seen, hidden, strict=True)
    return [Place(h, NO_ROW if s == ZERO_ROW else s, True) if is_row(s) else Place(s, h, False) for s, h in pairs]


def difference(history: History, other: Outcome, outcome: Outcome) -> Difference | None:
    """Return in what a request's prompt first differs from another one that a cache may confuse with it.

    Return None if the block differs in more than that, if the prompts are equal or have no rows, or if no engine looks
    that block up: it must be complete, and end before the last position.
    """
    block = assumed_block(history)
    first = common_prefix(other.prompt, outcome.prompt)
    start, end = first // block * block, (first // block + 1) * block
    if not other.hidden or not outcome.hidden or end > len(other.prompt) or end >= len(outcome.prompt):
        return None
    theirs, own = places(other, start, end), places(outcome, start, end)
    if [p.shown for p in theirs] == [p.shown for p in own]:
        return Difference.ROWS if [p.token for p in theirs] == [p.token for p in own] else None
    if any((mine.token, mine.row) != (p.token, p.row) for mine, p in zip(own, theirs, strict=True)):
        return None
    zeros = all(not p.token for p, mine in zip(theirs, own, strict=True) if p.shown != mine.shown)
    return Difference.MASK_OVER_ZEROS if zeros else Difference.MASK


def differences(history: History, outcome: Outcome) -> set[Difference]:
    """Return in what a request's prompt differs from those that were sent before it ended, under the same identity."""
    return {
        found
        for other in history.outcomes
        if other.request != outcome.request
        and other.sent < outcome.finished
        and set(other.identities) & set(outcome.identities)
        and (found := difference(history, other, outcome)) is not None
    }


def same_rows_until(other: Outcome, outcome: Outcome) -> float:
    """Return the first position at which two prompts carry different rows that the model does not see.

    An engine may key its blocks by all rows of a request that has any, also by those under tokens, so that no reuse is
    promised from there on.
    """
    theirs, own = other.hidden, outcome.hidden
    same = common_prefix(theirs, own)
    return math.inf if 0 < same == min(len(theirs), len(own)) else same


def sends_rows(outcome: Outcome) -> bool:
    """Return whether a prompt has rows."""
    return bool(outcome.hidden) and has_rows(outcome.prompt)


def hit_rows(outcome: Outcome) -> bool:
    """Return whether the cached prefix of a prompt contains rows."""
    return any(map(is_row, outcome.prompt[: outcome.hit_at_least]))
