"""Non-prefix KV reuse: an engine mode that reuses parts of earlier prompts at other positions and may change answers.

Tokens after such a part are computed with keys that were shifted to another position and that had attended to other
tokens. So an answer may differ from the cold one without a fault; so may the answer of a later request that continues
it. This module says, from the tokens alone, which answers may differ. All others must equal the cold one.
"""

from __future__ import annotations

import math

from coldproof.adapters.protocol.shape import EngineShape
from coldproof.harness.history.records import (
    History,
    Outcome,
    common_prefix,
    requests_with_same_identity,
    written_tokens,
)


def reusable_tokens(shape: EngineShape, tokens: tuple[int, ...], prompt: tuple[int, ...]) -> int:
    """Return how many tokens of a prompt may come from a computed sequence: the common prefix and, with non-prefix
    reuse, all later parts of it that are long enough."""
    shared = common_prefix(tokens, prompt)
    return shared + (non_prefix_tokens(tokens, prompt[shared:], shape.moves_pieces_of) if shape.moves_pieces_of else 0)


def non_prefix_tokens(tokens: tuple[int, ...], rest: tuple[int, ...], length: int) -> int:
    """Return how many tokens of `rest` occur in a sequence, in parts of at least `length` tokens."""
    known = {tokens[i : i + length] for i in range(len(tokens) - length + 1)}
    found: set[int] = set()
    for i in range(len(rest) - length + 1):
        if rest[i : i + length] in known:
            found.update(range(i, i + length))
    return len(found)


def may_reuse_non_prefix(shape: EngineShape, one: Outcome, other: Outcome) -> bool:
    """Return whether a part of one request may have been reused at another position in the other's prompt."""
    tokens = written_tokens(one)
    return reusable_tokens(shape, tokens, other.prompt) > common_prefix(tokens, other.prompt)


def may_be_changed(history: History) -> frozenset[int]:
    """Return the requests whose answers non-prefix reuse may have changed: those with a reused part in their prompt,
    and those that continue a prefix of such a request.

    Only tokens that the request's own identity computed count: reuse of another identity's KV is always a fault.
    """
    shape = history.shape
    if not shape.moves_pieces_of or not shape.prefix_caching:
        return frozenset()
    since = {o.request: math.inf for o in history.outcomes}  # the first token whose keys may differ from cold ones
    changed = True
    while changed:
        changed = False
        for outcome in history.outcomes:
            missed = outcome.hit_at_most == 0 and outcome.answered
            sources = [] if missed else requests_with_same_identity(history, outcome)
            first = min((first_changed_token(shape, o, outcome, since) for o in sources), default=math.inf)
            if first < since[outcome.request]:
                since[outcome.request], changed = first, True
    return frozenset(request for request, first in since.items() if first < math.inf)


def first_changed_token(shape: EngineShape, other: Outcome, outcome: Outcome, since: dict[int, float]) -> float:
    """Return the first prompt token that another request may have given keys that differ from cold ones."""
    shared = common_prefix(written_tokens(other), outcome.prompt)
    if may_reuse_non_prefix(shape, other, outcome):
        return shared
    return since[other.request] if since[other.request] < shared else math.inf
