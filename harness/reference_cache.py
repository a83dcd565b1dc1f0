"""An executable model of what a prefix cache may do: bounds on the cached-token count of every request.

At most: the longest prefix that anything computed under the same identity shares with the prompt; more is a hit that
should have been a miss, wrong tokens or not. At least: the engine's own block granularity applied to what an earlier
request of the same residence left behind, while the pool had room; less is a lost hit, and an engine that never hits
passes every comparison of tokens. In a pool too small the blocks that were freed last are taken to be evicted last, as
vLLM and most engines document. Pure; knows no engine but by the shape it states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import msgspec

from adapters.base import EngineShape
from harness.history import History, Outcome
from harness.moved import reusable
from harness.tokens_computed import common_prefix, computed, others_alike
from harness.workload import NONCE_TOKENS, Burst, RestoreState, save_of

AHEAD = 8  # tokens for which an engine may take slots before it knows whether they come: drafts, a step ahead
MOST_GROUPS = 16  # of KV-cache blocks that layers of different kinds may need beside one another, each its own


class Bounds(msgspec.Struct, frozen=True):
    """Allowed cached-token counts of one request; `at_least` is None where the engine states no granularity."""

    at_least: int | None
    at_most: int


def all_computed(outcome: Outcome) -> list[tuple[int, ...]]:
    """The same for each of several answers: one that was sampled may go on as another prompt does."""
    return [computed(outcome), *(outcome.prompt + tuple(t.id for t in tokens[:-1]) for tokens in outcome.others)]


def bounds(history: History) -> dict[int, Bounds]:
    """The bounds of every request of a history, by request number."""
    kept = what_is_kept(history) if history.shape.sequences or not has_room(history) else None
    return {
        outcome.request: Bounds(
            at_least=at_least(history, outcome) if kept is None else at_least(history, outcome, kept) or None,
            at_most=at_most(history, outcome),
        )
        for outcome in history.outcomes
    }


def at_most(history: History, outcome: Outcome) -> int:
    """The longest prefix computed under any identity this request may rightly have, and what may have been moved of one
    that was. The last token is never cached, for its logits have to be computed; a second tier may load it with the
    rest, to be computed once more.
    """
    if history.shape.prefix_caching is False:
        return 0
    if outcome.surface.answers > 1:  # its answers share the prompt among themselves, as soon as one has computed it
        return len(outcome.prompt) - 1
    shared = (
        reusable(history.shape, tokens, outcome.prompt)
        for other in writers(history, outcome)
        for tokens in all_computed(other)
    )
    longest = max(by_chance(history.shape), max(shared, default=0))
    return min(longest, len(outcome.prompt) - (0 if history.shape.second_tier else 1))


def by_chance(shape: EngineShape) -> int:
    """Tokens that a prompt may share with one of another run: where hits come token by token, fewer than a nonce has
    prove nothing."""
    return NONCE_TOKENS - 1 if shape.block_size is None or shape.block_size < NONCE_TOKENS else 0


def writers(history: History, outcome: Outcome) -> list[Outcome]:
    """Requests that may have written blocks of this request's identity before its lookup, itself excluded.

    What was over before a successful reset began has left nothing to whoever comes after it, except in a second tier.
    """
    resets = [] if history.shape.second_tier else [r for r in history.resets if r.success]
    return [
        other
        for other in others_alike(history, outcome)
        if not any(other.finished <= r.began and r.ended <= outcome.sent for r in resets)
    ]


def at_least(
    history: History, outcome: Outcome, kept: Callable[[Outcome, Outcome], float] = lambda _other, _outcome: math.inf
) -> int | None:
    """What must be hit, by whole blocks, of what finished requests of the same residence left behind, as far as the
    pool has `kept` it for this one.

    What outgrew its context has left nothing to count on. A request that an adapter change overlapped neither owes nor
    promises anything, nor does one that was aborted; and a reset, whatever it said, may have emptied the cache. Prompt
    logprobs need the prompt computed, so engines may pass the cache by for them. Where layers keep blocks sparsely
    (sliding windows, states) vLLM promises the replay boundary of a prompt and no more (prefix_cache_retention_interval
    0): then only a prompt sent again is owed anything, and nothing is where nobody says how large the blocks of all
    groups are.
    """
    block = history.shape.block_size
    known = history.shape.uniform or history.shape.groups  # else nobody says which unit hits come in
    if block is None or history.shape.prefix_caching is None or not known:
        return None
    if not history.shape.prefix_caching or outcome.overlapped or outcome.surface.prompt_logprobs:
        return 0
    if outcome.surface.answers > 1:
        return 0
    reset = max((r.ended for r in history.resets if r.began < outcome.finished), default=-math.inf)
    shared = (
        min(common_prefix(computed(other), outcome.prompt), kept(other, outcome))
        for other in history.outcomes
        if other.finished <= outcome.sent  # at one moment: a clock that counts steps stands still in between
        and other.sent >= reset
        and other.answered
        and not outgrows(history, other)
        and not other.surface.prompt_logprobs
        and not other.overlapped
        and other.residence == outcome.residence
        and not changed_between(history, other, outcome)
        and (history.shape.sequences or not restored_between(history, other, outcome))
        and (history.shape.uniform or other.prompt == outcome.prompt)
    )
    return int(min(max(shared, default=0), len(outcome.prompt) - 1)) // block * block


def changed_between(history: History, first: Outcome, then: Outcome) -> bool:
    """Whether a request of this residence was overlapped by a change that its own load number does not show."""
    return any(
        other.overlapped and other.residence.name == first.residence.name and first.sent <= other.sent <= then.sent
        for other in history.outcomes
    )


def restored_between(history: History, first: Outcome, then: Outcome) -> bool:
    """Whether a restore has put something else in place of what a request had left."""
    return any(isinstance(step, RestoreState) for step in history.workload.steps[first.step : then.step])


def lost_tokens(history: History, outcome: Outcome) -> int:
    """Prompt tokens that had been computed, would have hit, and were gone: in a pool too small, evicted."""
    owed, hit = at_least(history, outcome), outcome.hit_at_most
    return 0 if owed is None or hit is None else max(0, owed - hit)


def blocks_needed(history: History, tokens: int) -> int | None:
    """Whole blocks for so many tokens, or None where the engine states no block size."""
    block = history.shape.block_size
    return None if block is None else math.ceil(tokens / block)


def never_fits(history: History, outcome: Outcome) -> bool:
    """Whether the prompt alone, with one token to answer, is more than the model or the whole pool takes."""
    return too_long(history, len(outcome.prompt) + 1)


def may_be_refused(history: History, outcome: Outcome) -> bool:
    """Whether the prompt with all of its answer is too long: an engine may refuse it, or cut the answer."""
    return too_long(history, len(outcome.prompt) + outcome.max_tokens)


def too_long(history: History, tokens: int) -> bool:
    """Whether one request cannot come to so many tokens here."""
    needed, pool = blocks_needed(history, tokens), history.shape.pool_blocks
    return tokens > history.shape.max_model_tokens or (needed is not None and pool is not None and needed > pool)


def outgrows(history: History, outcome: Outcome) -> bool:
    """Whether a request came to more than its context, in an engine that then drops the oldest of it."""
    return history.shape.shifts_context and len(outcome.prompt) + outcome.max_tokens > history.shape.max_model_tokens


def has_room(history: History) -> bool:
    """Whether the pool held everything that this history ever computed, so that nothing of it was evicted."""
    block, pool = history.shape.block_size, history.shape.pool_blocks
    if block is None or pool is None:
        return False
    pool -= history.shape.drops_all_below or 0
    return sum(o.surface.answers * blocks_held(history, len(o.prompt) + o.max_tokens) for o in history.outcomes) <= pool


def what_is_kept(history: History) -> Callable[[Outcome, Outcome], float]:
    """How many tokens from one request's start a pool too small for the history still held when another looked for it.

    Whoever evicts what was freed longest ago, and the end of a prefix before its beginning, takes every other block
    first. So there remains as much of the pool as has no part in the blocks of all that the engine may have had to do
    with since the first one's burst began: whose client hung up may linger. A block that two of them share counts once,
    as long as it is kept itself; which the same rule says of all that came after the first one. Nothing is said about
    steps with a preemption, which takes blocks twice; nor where a request lets go of blocks while it runs, a second
    tier moves some, or the engine drops all at once.
    """
    block, pool = history.shape.block_size, history.shape.pool_blocks
    if history.shape.sequences:
        return only_the_latest(history)
    orderly = history.shape.uniform and not history.shape.second_tier and history.shape.drops_all_below is None
    if block is None or pool is None or not orderly:
        return lambda _other, _outcome: 0
    most = {
        o.request: o.surface.answers * blocks_held(history, len(o.prompt) + o.max_tokens + AHEAD)
        for o in history.outcomes
    }
    hit = {o.request: may_be_shared(o, block) for o in history.outcomes}
    left = {o.request: prefixes(o, computed(o), block) if o.answered else () for o in history.outcomes}
    steps: dict[int, list[int]] = {}
    for outcome in history.outcomes:
        steps.setdefault(outcome.step, []).append(outcome.request)
    lingering = {o.request for o in history.outcomes if not o.answered or o.surface.stop}
    preempted = {record.step for record in history.steps if record.after.preemptions != record.before.preemptions}

    def kept(other: Outcome, outcome: Outcome) -> int:
        since = range(other.step, outcome.step + 1)
        if not preempted.isdisjoint(since):
            return 0
        taken = sum(most[o.request] for o in history.outcomes if o.step < other.step and o.request in lingering)
        known: set[Hashable] = set()  # of a burst each computes for itself what nobody had computed before it
        for step in since:
            taken += sum(most[request] - len(known.intersection(hit[request])) for request in steps.get(step, ()))
            known.update(*(left[request] for request in steps.get(step, ())))
        return max(0, pool - taken + most[other.request]) * block

    return kept


def only_the_latest(history: History) -> Callable[[Outcome, Outcome], float]:
    """Where whole sequences are kept, any prompt may take the place of any: for sure there is only what the request
    just before left, for one that has half of its prompt in common with it. Who has less may be put elsewhere
    (llama.cpp: --slot-prompt-similarity)."""

    def kept(other: Outcome, outcome: Outcome) -> float:
        alike = 2 * common_prefix(computed(other), outcome.prompt) >= len(outcome.prompt)
        return math.inf if alike and latest_before(history, outcome) == other.request else 0

    return kept


def latest_before(history: History, outcome: Outcome) -> int | None:
    """The one request whose sequence was left last, or was by what a restore has brought back; None where several ran
    at once. Nor is there one where somebody else was served between a save and its restore: an engine may hold that
    what it restores is the last one's.
    """
    steps = history.workload.steps
    by_step: dict[int, list[Outcome]] = {}
    for other in history.outcomes:
        by_step.setdefault(other.step, []).append(other)
    place = outcome.step
    while place >= 0:
        asked = by_step.get(place, [])
        if isinstance(steps[place], Burst) and place < outcome.step:
            return asked[0].request if len(asked) == 1 else None
        if len(asked) > 1:
            return None
        saved = save_of(history.workload, place) if isinstance(steps[place], RestoreState) else place
        if saved is None:
            return None
        between = [o for step in range(saved, place) for o in by_step.get(step, ())]
        if any(other.residence != outcome.residence for other in between):
            return None
        place = saved - 1
    return None


def may_be_shared(outcome: Outcome, block: int) -> tuple[Hashable, ...]:
    """The blocks that a request takes from whoever computed them, as long as they are kept; with several answers,
    scores of its prompt or an adapter that changes in its midst it may not."""
    surface = outcome.surface
    if not outcome.answered or outcome.overlapped or surface.answers > 1 or surface.prompt_logprobs:
        return ()
    return prefixes(outcome, outcome.prompt[:-1], block)


def prefixes(outcome: Outcome, tokens: tuple[int, ...], block: int) -> tuple[Hashable, ...]:
    """A name for each whole block: whose it is, and the tokens up to its end."""
    return tuple((outcome.residence, tokens[:end]) for end in range(block, len(tokens) + 1, block))


def least_blocks(history: History, tokens: int) -> int:
    """The blocks that a request of so many tokens needs at a time for sure, of all groups that are known."""
    shape = history.shape
    if shape.groups:
        return sum(group.blocks(tokens) for group in shape.groups)
    return math.ceil(tokens / (shape.block_size or 1))


def blocks_held(history: History, tokens: int) -> int:
    """The blocks that a request of so many tokens needs at a time, of all groups; many where those are unknown."""
    shape = history.shape
    return least_blocks(history, tokens) * (1 if shape.groups or shape.uniform else MOST_GROUPS)
