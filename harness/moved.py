"""Pieces of earlier prompts that an engine reuses at other places, in a mode that may change answers by design.

What is computed after such a piece was computed over keys that were shifted to another position, and that had attended
to other tokens. So an answer may differ from the cold one without any fault: from here on, and in whoever goes on from
it. Which answers that can be is told here, from the tokens alone; all others are held to the cold one. Pure.
"""

from __future__ import annotations

import math

from adapters.base import EngineShape
from harness.history import History, Outcome
from harness.tokens_computed import common_prefix, computed, others_alike


def reusable(shape: EngineShape, tokens: tuple[int, ...], prompt: tuple[int, ...]) -> int:
    """How many tokens of a prompt may come from a sequence that was computed: its beginning and, where pieces are
    reused at other places, whatever of the rest stands in it in pieces that are long enough."""
    shared = common_prefix(tokens, prompt)
    return shared + (moved(tokens, prompt[shared:], shape.moves_pieces_of) if shape.moves_pieces_of else 0)


def moved(tokens: tuple[int, ...], rest: tuple[int, ...], length: int) -> int:
    """How many tokens of the rest of a prompt stand in a sequence, in pieces of at least so many."""
    known = {tokens[i : i + length] for i in range(len(tokens) - length + 1)}
    found: set[int] = set()
    for i in range(len(rest) - length + 1):
        if rest[i : i + length] in known:
            found.update(range(i, i + length))
    return len(found)


def moves(shape: EngineShape, one: Outcome, other: Outcome) -> bool:
    """Whether a piece of one request may have been reused at another place in the other's prompt."""
    tokens = computed(one)
    return reusable(shape, tokens, other.prompt) > common_prefix(tokens, other.prompt)


def may_be_changed(history: History) -> frozenset[int]:
    """The requests whose answer such a mode may have changed: with a moved piece in their prompt, or behind a prefix of
    somebody who had one. Only what their own identity had computed counts: nothing excuses another's.
    """
    shape = history.shape
    if not shape.moves_pieces_of or not shape.prefix_caching:
        return frozenset()
    since = {o.request: math.inf for o in history.outcomes}  # the first token whose keys may be other than cold
    changed = True
    while changed:
        changed = False
        for outcome in history.outcomes:
            found = [changed_from(shape, other, outcome, since) for other in sources(history, outcome)]
            first = min(found, default=math.inf)
            if first < since[outcome.request]:
                since[outcome.request], changed = first, True
    return frozenset(request for request, first in since.items() if first < math.inf)


def sources(history: History, outcome: Outcome) -> list[Outcome]:
    """Requests that this one may have reused anything of; none where it says that it reused nothing."""
    if outcome.hit_at_most == 0 and outcome.answered:
        return []
    return others_alike(history, outcome)


def changed_from(shape: EngineShape, other: Outcome, outcome: Outcome, since: dict[int, float]) -> float:
    """The first token of a prompt that another request may have given keys other than cold."""
    shared = common_prefix(computed(other), outcome.prompt)
    if moves(shape, other, outcome):
        return shared
    return since[other.request] if since[other.request] < shared else math.inf
