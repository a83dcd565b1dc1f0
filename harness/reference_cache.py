"""An executable model of what a prefix cache may do: bounds on the cached-token count of every request.

At most: the longest prefix that anything computed under the same identity shares with the prompt; more is a hit that
should have been a miss, wrong tokens or not. At least: the engine's own block granularity applied to what an earlier
request of the same residence left behind, while the pool had room; less is a lost hit, and an engine that never hits
passes every comparison of tokens. Pure; knows no engine but by the shape it states.
"""

from __future__ import annotations

import math

import msgspec

from harness.history import History, Outcome


class Bounds(msgspec.Struct, frozen=True):
    """Allowed cached-token counts of one request; `at_least` is None where the engine states no granularity."""

    at_least: int | None
    at_most: int


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many leading tokens two sequences share."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def computed(outcome: Outcome) -> tuple[int, ...]:
    """The tokens whose KV a request wrote: all but the last sampled one, whose KV no pass computes (vllm#54193)."""
    return outcome.prompt + outcome.token_ids[:-1]


def bounds(history: History) -> dict[int, Bounds]:
    """The bounds of every request of a history, by request number."""
    roomy = has_room(history)
    return {
        outcome.request: Bounds(
            at_least=at_least(history, outcome) if roomy else None,
            at_most=at_most(history, outcome),
        )
        for outcome in history.outcomes
    }


def at_most(history: History, outcome: Outcome) -> int:
    """The longest prefix computed under any identity this request may rightly have. The last token is never cached:
    its logits have to be computed."""
    if history.shape.prefix_caching is False:
        return 0
    shared = (common_prefix(computed(other), outcome.prompt) for other in writers(history, outcome))
    return min(max(shared, default=0), len(outcome.prompt) - 1)


def writers(history: History, outcome: Outcome) -> list[Outcome]:
    """Requests that may have written blocks of this request's identity before its lookup, itself excluded."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request
        and other.sent < outcome.finished
        and set(other.identities) & set(outcome.identities)
    ]


def at_least(history: History, outcome: Outcome) -> int | None:
    """What must be hit, by whole blocks, of what finished requests of the same residence left behind.

    A request that an adapter change overlapped neither owes nor promises anything.
    """
    block = history.shape.block_size
    if block is None or history.shape.prefix_caching is None:
        return None
    if not history.shape.prefix_caching or outcome.overlapped:
        return 0
    shared = (
        common_prefix(computed(other), outcome.prompt)
        for other in history.outcomes
        if other.finished < outcome.sent
        and other.error is None
        and not other.overlapped
        and other.residence == outcome.residence
        and not changed_between(history, other, outcome)
    )
    return min(max(shared, default=0), len(outcome.prompt) - 1) // block * block


def changed_between(history: History, first: Outcome, then: Outcome) -> bool:
    """Whether a request of this residence was overlapped by a change that its own load number does not show."""
    return any(
        other.overlapped and other.residence.name == first.residence.name and first.sent <= other.sent <= then.sent
        for other in history.outcomes
    )


def has_room(history: History) -> bool:
    """Whether the pool held everything that this history ever computed, so that nothing of it was evicted."""
    block, pool = history.shape.block_size, history.shape.pool_blocks
    if block is None or pool is None:
        return False
    needed = sum(math.ceil((len(o.prompt) + o.max_tokens) / block) for o in history.outcomes)
    return needed <= pool
