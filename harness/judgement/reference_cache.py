"""A reference model of a prefix cache: it bounds the cached-token count of every request.

The maximum expected hit is the longest prefix of the prompt that was computed under the same identity. More is a hit
that should have been a miss, even if the tokens are right. The minimum expected hit is what an earlier request of the
same cache partition left behind, in whole blocks, as long as the pool had room. Less is a lost hit, which comparing
tokens does not detect. If the pool is too small, the model assumes that the blocks freed last are evicted last, as vLLM
and most engines document. Pure. It knows an engine only by the shape that the engine reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from coldproof.adapters.protocol.shape import EngineShape
from coldproof.harness import feature_files
from coldproof.harness.history.content import carry_the_same_until
from coldproof.harness.history.non_prefix_reuse import reusable_tokens
from coldproof.harness.history.records import (
    History,
    Outcome,
    common_prefix,
    may_keep_last,
    requests_with_same_identity,
    reset_everything,
    restart_times,
    written_sequences,
    written_tokens,
)
from coldproof.harness.history.twins import hits_of_twins
from coldproof.harness.history.weights import is_comparable
from coldproof.harness.judgement.kept_positions import blocks_left, blocks_of_windows, last_kept_position
from coldproof.harness.judgement.request_sizes import AHEAD, blocks_held, blocks_of_all, outgrows
from coldproof.harness.workload.steps import Burst, RestoreState, save_of
from coldproof.harness.workload.tokens import NONCE_TOKENS

LeavesOut = Callable[[History], int]
UNPUBLISHED: list[LeavesOut] = []
MIN_SHARED = 16  # tokens of a prefix: more than a nonce, which all prompts of a run share


class Bounds(msgspec.Struct, frozen=True):
    """Allowed cached-token counts of one request. `at_least` is None if the engine reports no block size."""

    at_least: int | None
    at_most: int


def bounds(history: History) -> dict[int, Bounds]:
    """Return the bounds of every request of a history, by request number.

    What the same request hit on an engine with another implementation of one part is a lower bound, too.
    """
    of_twins = hits_of_twins(history)
    kept = kept_tokens(history) if history.shape.sequences or not has_room(history) else None
    parted = junctions(history) if kept is None else {}
    return {
        outcome.request: Bounds(
            at_least=of_both(
                at_least(history, outcome, junctions=parted)
                if kept is None
                else at_least(history, outcome, kept) or None,
                of_twins.get(outcome.request),
            ),
            at_most=at_most(history, outcome),
        )
        for outcome in history.outcomes
    }


def of_both(*bounds: int | None) -> int | None:
    """Return the greater of two lower bounds, of which each may be unknown."""
    return max((one for one in bounds if one is not None), default=None)


def at_most(history: History, outcome: Outcome) -> int:
    """Return the maximum expected hit in tokens.

    It is the longest prefix computed under any identity that the request may have had, including non-prefix KV reuse.
    The last token is never cached, because its logits have to be computed, unless they are kept. A second tier may
    load it with the rest.
    """
    if history.shape.prefix_caching is False:
        return 0
    whole = history.shape.second_tier or history.shape.keeps_scores
    most = len(outcome.prompt) - (0 if whole else 1)
    if not is_comparable(history, outcome):  # the engine may use KV of other weights
        return most
    if outcome.options.answers > 1:  # its answers share the prompt as soon as one of them has computed it
        return most
    shared = (
        reusable_tokens(history.shape, tokens, outcome.prompt)
        for other in writers(history, outcome)
        for tokens in written_sequences(other, drafts=may_keep_last(history))
    )
    longest = max(by_chance(history.shape), max(shared, default=0))
    return min(longest, most)


def by_chance(shape: EngineShape) -> int:
    """Return how many tokens a prompt may share with one of another run. It is 0 if blocks are longer than a nonce."""
    return NONCE_TOKENS - 1 if shape.block_size is None or shape.block_size < NONCE_TOKENS else 0


def writers(history: History, outcome: Outcome) -> list[Outcome]:
    """Return the other requests that may have left blocks of this identity on the rank of this request, and that no
    reset of everything follows. A rank finds only what it has computed itself.
    """
    resets = [r for r in history.resets if reset_everything(history, r)]
    return [
        other
        for other in requests_with_same_identity(history, outcome)
        if may_share_a_cache(other, outcome)
        and not any(other.finished <= r.began and r.ended <= outcome.sent for r in resets)
    ]


def may_share_a_cache(other: Outcome, outcome: Outcome) -> bool:
    """Return whether two requests may have been served by one rank: neither of them is known to be another one's."""
    ranks = (other.partition.rank, outcome.partition.rank)
    return None in ranks or ranks[0] == ranks[1]


def everything(_other: Outcome, _outcome: Outcome) -> float:
    """Return how many tokens of another request a pool with room still holds: all."""
    return math.inf


def at_least(
    history: History,
    outcome: Outcome,
    kept: Callable[[Outcome, Outcome], float] = everything,
    junctions: Mapping[int, int] = MappingProxyType({}),
) -> int | None:
    """Return the minimum expected hit in tokens: whole blocks that ended requests of the same cache partition left.

    `kept(other, outcome)` returns how many tokens of `other` the pool still held. Return None if the block size is
    unknown. Nothing is expected from requests that exceeded their context, overlapped a change of adapter or weights or
    were aborted, nor from before a restart or a reset, even one that reported no success, nor on a rank that the engine
    chose. Nothing is expected where the answer needs the whole prompt, such as prompt logprobs, nor beyond
    what both requests carry without the model seeing it, because engines may key blocks by that. If layers keep blocks
    sparsely (sliding windows, states), a hit is expected only at the positions that they keep, of which `junctions` has
    those of prompts that parted from earlier ones. Of an engine whose hits lack a block, a block less is expected.
    """
    block = history.shape.block_size
    known = history.shape.uniform or history.shape.groups  # else the unit of hits is unknown
    if block is None or history.shape.prefix_caching is None or not known:
        return None
    if not must_hit(history, outcome):
        return 0
    found = (
        tokens
        if history.shape.uniform
        else last_kept_position(history.shape, other, outcome, tokens, junctions.get(other.request, 0))
        for other, tokens in left_for(history, outcome, kept)
    )
    whole = int(min(max(found, default=0), len(outcome.prompt) - 1)) // block * block
    return max(0, whole - block) if history.shape.drops_block else whole


def must_hit(history: History, outcome: Outcome) -> bool:
    """Return whether a request is looked up like any other, on a known rank. A streaming session has its own KV."""
    response_options = outcome.options
    if history.shape.ranks > 1 and outcome.partition.rank is None:
        return False
    if outcome.aborted is not None and not outcome.tokens:  # perhaps before it was looked up: vLLM then reports 0 hits
        return False
    return bool(history.shape.prefix_caching) and not (
        outcome.streaming
        or outcome.overlapped
        or response_options.needs_whole_prompt
        or response_options.answers > 1
        or response_options.most_loaded is not None
    )


def left_for(
    history: History, outcome: Outcome, kept: Callable[[Outcome, Outcome], float]
) -> Iterator[tuple[Outcome, float]]:
    """Yield the requests that must have left blocks for this one, with the number of tokens of its prompt."""
    resets = [r.ended for r in history.resets if r.began < outcome.finished]
    reset = max((*resets, *(at for at in restart_times(history) if at < outcome.finished)), default=-math.inf)
    for other in history.outcomes:
        if (
            other.finished <= outcome.sent  # may be equal: a clock that counts steps stands still between them
            and other.sent >= reset
            and other.answered
            and not other.streaming
            and not outgrows(history, other)
            and not other.options.needs_whole_prompt
            and other.options.most_stored is None
            and not other.overlapped
            and other.partition == outcome.partition
            and not changed_between(history, other, outcome)
            and (history.shape.sequences or not restored_between(history, other, outcome))
        ):
            common = common_prefix(published_tokens(history, other), outcome.prompt)
            yield other, min(common, kept(other, outcome), carry_the_same_until(other, outcome))


def junctions(history: History) -> dict[int, int]:
    """Return where prompts parted from all earlier ones, in whole blocks, by request number, if that is certain.

    It is certain if the prefix that must have been in the cache is the longest one that may have been. Only engines
    with sparse layers of a known rule are asked for it.
    """
    block = history.shape.block_size
    if not keeps_positions(history) or block is None:
        return {}
    found = {}
    for outcome in history.outcomes:
        if must_hit(history, outcome) and not outcome.session:
            left = max(
                (tokens for _, tokens in left_for(history, outcome, lambda _other, _outcome: math.inf)), default=0
            )
            ends = {int(min(tokens, len(outcome.prompt) - 1)) // block for tokens in (left, at_most(history, outcome))}
            if len(ends) == 1:
                found[outcome.request] = ends.pop() * block
    return found


def may_leave_out(function: LeavesOut) -> LeavesOut:
    """Register a function that returns how many tokens at the end of an answer an engine may leave unpublished."""
    UNPUBLISHED.append(function)
    return function


def published_tokens(history: History, other: Outcome) -> tuple[int, ...]:
    """Return the tokens of a request in blocks that an engine must have published. A file `bounds` of a feature may say
    that the last ones need not be.
    """
    feature_files.load("bounds")
    written = written_tokens(other)
    if not history.shape.publishes_answers:
        return other.prompt[: len(written)]
    left_out = max((leaves_out(history) for leaves_out in UNPUBLISHED), default=0)
    return written[: max(len(other.prompt), len(written) - left_out)]


def changed_between(history: History, first: Outcome, then: Outcome) -> bool:
    """Return whether an adapter change overlapped a request of this adapter name between two requests."""
    return any(
        other.overlapped and other.partition.name == first.partition.name and first.sent <= other.sent <= then.sent
        for other in history.outcomes
    )


def restored_between(history: History, first: Outcome, then: Outcome) -> bool:
    """Return whether a restore between two requests may have replaced what the first one left."""
    return any(isinstance(step, RestoreState) for step in history.workload.steps[first.step : then.step])


def lost_tokens(history: History, outcome: Outcome) -> int:
    """Return the number of prompt tokens that were computed before and missed: they were evicted."""
    owed, hit = at_least(history, outcome), outcome.hit_at_most
    return 0 if owed is None or hit is None else max(0, owed - hit)


def has_room(history: History) -> bool:
    """Return whether the pool has room for everything that this history computed, so that nothing was evicted.

    What was there before must be evicted first.
    """
    block, pool = history.shape.block_size, history.shape.pool_blocks
    if block is None or pool is None or not history.shape.evicts_oldest:
        return False
    pool -= history.shape.drops_all_below or 0
    return (blocks_to_keep(history) if keeps_positions(history) else blocks_of_all(history)) <= pool


def keeps_positions(history: History) -> bool:
    """Return whether layers keep blocks sparsely, and it is known for which positions."""
    return not history.shape.uniform and history.shape.kept_every is not None and bool(history.shape.groups)


def blocks_to_keep(history: History) -> int:
    """Return the number of blocks that this history leaves in the cache, and that its windows hold at a time.

    What a request must hit is there already. If an engine loses such a hit, it needs more than this, by its own fault.
    """
    parted, shape = junctions(history), history.shape
    left, lingering, steps = 0, 0, dict[int, int]()
    for outcome in history.outcomes:
        tokens, answers = len(outcome.prompt) + outcome.max_tokens + AHEAD, outcome.options.answers
        left += answers * blocks_left(shape, tokens, at_least(history, outcome, junctions=parted) or 0)
        held = answers * blocks_of_windows(shape, tokens)
        if not outcome.answered or outcome.session:  # may hold its blocks for longer than its step
            lingering += held
        else:
            steps[outcome.step] = steps.get(outcome.step, 0) + held
    return left + lingering + max(steps.values(), default=0)


def kept_tokens(history: History) -> Callable[[Outcome, Outcome], float]:
    """Return the function `kept(other, outcome)`: how many leading tokens of `other` the pool still held for `outcome`.

    It is for a pool that is too small for the whole history. An engine that evicts the blocks freed longest ago, and
    the end of a prefix before its beginning, evicts every other block first. What remains is the pool without the
    blocks of all requests since the burst of `other` began; aborted requests may still run, and sessions hold blocks.
    A block that several requests share counts once. An engine that evicts leaves keeps all of `other` or, perhaps,
    nothing. The result is 0 for steps with a preemption, which takes blocks twice, and for engines that free blocks
    while a request runs, have a second tier of which nothing is known, or drop all blocks at once.
    """
    block, pool = history.shape.block_size, history.shape.pool_blocks
    if history.shape.sequences:
        return only_the_latest(history)
    if history.shape.tier_blocks is not None:
        return kept_by_the_tier(history, history.shape.tier_blocks)
    orderly = history.shape.uniform and not history.shape.second_tier and history.shape.drops_all_below is None
    if block is None or pool is None or not orderly:
        return lambda _other, _outcome: 0
    most = {
        o.request: o.options.answers * blocks_held(history, len(o.prompt) + o.max_tokens + AHEAD)
        for o in history.outcomes
    }
    hit = {o.request: may_be_shared(o, block) for o in history.outcomes}
    left = {o.request: prefixes(o, written_tokens(o), block) if o.answered else () for o in history.outcomes}
    steps: dict[int, list[int]] = {}
    for outcome in history.outcomes:
        steps.setdefault(outcome.step, []).append(outcome.request)
    lingering = {o.request for o in history.outcomes if not o.answered or o.options.stop or o.session}
    preempted = {record.step for record in history.steps if record.after.preemptions != record.before.preemptions}

    def kept(other: Outcome, outcome: Outcome) -> int:
        since = range(other.step, outcome.step + 1)
        if not preempted.isdisjoint(since):
            return 0
        taken = sum(most[o.request] for o in history.outcomes if o.step < other.step and o.request in lingering)
        known: set[Hashable] = set()  # requests of one burst do not share blocks that none had computed before it
        for step in since:
            taken += sum(most[request] - len(known.intersection(hit[request])) for request in steps.get(step, ()))
            known.update(*(left[request] for request in steps.get(step, ())))
        room = max(0, pool - taken + most[other.request]) * block
        return room if room >= len(written_tokens(other)) or not history.shape.evicts_leaves else 0

    return kept


def kept_by_the_tier(history: History, tier_blocks: int) -> Callable[[Outcome, Outcome], float]:
    """Return the function `kept(other, outcome)` for a second tier: whole prompts, and answers if it keeps these, as
    long as it has room for all.

    Copies to the tier may take a while, so requests must have been answered in between. Nothing is expected over a step
    with a preemption, a failed load or an aborted request, whose blocks may not be stored.
    """
    asked = {o.step for o in history.outcomes}
    readings = ((record.step, record.before, record.after) for record in history.steps)
    disturbed = {o.step for o in history.outcomes if not o.answered} | {
        step
        for step, before, after in readings
        if (before.preemptions, before.failed_loads) != (after.preemptions, after.failed_loads)
    }
    room = blocks_of_all(history) <= tier_blocks

    def kept(other: Outcome, outcome: Outcome) -> float:
        between = range(other.step + 1, outcome.step)
        if not room or asked.isdisjoint(between) or not disturbed.isdisjoint((other.step, *between)):
            return 0
        return len(written_tokens(other) if history.shape.tier_keeps_answers else other.prompt)

    return kept


def only_the_latest(history: History) -> Callable[[Outcome, Outcome], float]:
    """Return the function `kept(other, outcome)` for an engine that keeps whole sequences.

    Any prompt may replace any sequence, so only the sequence of the request just before is certain, and only for a
    request that shares at least half of its prompt with it: others may be placed in another slot (llama.cpp:
    --slot-prompt-similarity).
    """

    def kept(other: Outcome, outcome: Outcome) -> float:
        alike = 2 * common_prefix(written_tokens(other), outcome.prompt) >= len(outcome.prompt)
        return math.inf if alike and latest_before(history, outcome) == other.request else 0

    return kept


def latest_before(history: History, outcome: Outcome) -> int | None:
    """Return the request whose sequence the engine holds: the last one, or the last one before a restored save.

    Return None if several ran at once, or if another cache partition was used between a save and its restore: an engine
    may take the restored sequence for the last partition's.
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
        if any(other.partition != outcome.partition for other in between):
            return None
        place = saved - 1
    return None


def may_be_shared(outcome: Outcome, block: int) -> tuple[Hashable, ...]:
    """Return the shared blocks. There may be none with several answers, prompt logprobs or an adapter change."""
    response_options = outcome.options
    if (
        not outcome.answered
        or outcome.overlapped
        or response_options.answers > 1
        or response_options.needs_whole_prompt
    ):
        return ()
    return prefixes(outcome, outcome.prompt[:-1], block)


def prefixes(outcome: Outcome, tokens: tuple[int, ...], block: int) -> tuple[Hashable, ...]:
    """Return a key for each whole block: its cache partition and the tokens up to its end."""
    return tuple((outcome.partition, tokens[:end]) for end in range(block, len(tokens) + 1, block))
