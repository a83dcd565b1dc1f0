"""What requests need of the context and the pool: whether one fits, and how many blocks it takes. Pure."""

from __future__ import annotations

import math

from coldproof.adapters.protocol.endpoints import IMPOSSIBLE_PRIORITY
from coldproof.harness.history.records import History, Outcome

AHEAD = 8  # tokens for which an engine may allocate slots in advance: drafts, a step ahead
MOST_GROUPS = 16  # assumed number of KV-cache block groups of layers of different kinds, if it is unknown


def blocks_needed(history: History, tokens: int) -> int | None:
    """Return how many whole blocks the group of layers that needs most of them has for `tokens`; None if the engine
    reports no block size. Its size of a hit is no block's where hits end inside a block.
    """
    shape = history.shape
    if shape.groups:
        return max(group.blocks(tokens) for group in shape.groups)
    return None if shape.block_size is None else math.ceil(tokens / shape.block_size)


def never_fits(history: History, outcome: Outcome) -> bool:
    """Return whether the prompt, with one token if the answer has any, exceeds the context length or the whole pool.

    No engine documents a limit for what a session holds, so its prompt may fill the context. Of an engine that tells no
    limit, it is not known.
    """
    if not history.shape.limit_is_told:
        return False
    without_token = outcome.session or outcome.options.pooled is not None
    return too_long(history, len(outcome.prompt) + (0 if without_token else 1))


def may_be_refused(history: History, outcome: Outcome) -> bool:
    """Return whether an engine may refuse a request: if the prompt with its whole answer is too long, where it may
    truncate the answer instead, or if no engine can have its priority.
    """
    odd = any(n == outcome.request and r.priority == IMPOSSIBLE_PRIORITY for n, _, r in history.workload.requests())
    return odd or too_long(history, len(outcome.prompt) + outcome.max_tokens)


def too_long(history: History, tokens: int) -> bool:
    """Return whether a request of `tokens` tokens exceeds the context length or the whole pool."""
    needed, pool = blocks_needed(history, tokens), history.shape.pool_blocks
    return tokens > history.shape.max_model_tokens or (needed is not None and pool is not None and needed > pool)


def outgrows(history: History, outcome: Outcome) -> bool:
    """Return whether a request exceeded its context, in an engine that then drops the oldest tokens."""
    return history.shape.shifts_context and len(outcome.prompt) + outcome.max_tokens > history.shape.max_model_tokens


def least_blocks(history: History, tokens: int) -> int:
    """Return the least number of blocks that a request of `tokens` tokens needs at a time, in all known groups."""
    shape = history.shape
    if shape.groups:
        return sum(group.blocks(tokens) for group in shape.groups)
    return math.ceil(tokens / (shape.block_size or 1))


def blocks_held(history: History, tokens: int) -> int:
    """Return the number of blocks that a request of `tokens` tokens needs at a time; an upper bound if unknown."""
    shape = history.shape
    return least_blocks(history, tokens) * (1 if shape.groups or shape.uniform else MOST_GROUPS)


def blocks_of_all(history: History) -> int:
    """Return the number of blocks for everything that this history computed, if its requests share none.

    Layers with windows or states may keep the blocks that a request no longer needs, if it is not known which they
    keep. These then stay in the pool in place of what was there before.
    """
    shape = history.shape
    keep_all = bool(shape.groups) and not shape.uniform and shape.kept_every is None

    def blocks(tokens: int) -> int:
        held = blocks_held(history, tokens)
        return held + sum(math.ceil(tokens / group.block) for group in shape.groups if keep_all and group.most_blocks)

    return sum(o.options.answers * blocks(len(o.prompt) + o.max_tokens) for o in history.outcomes)
