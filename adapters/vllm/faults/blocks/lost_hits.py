"""Hits that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, coordinator, manager, module, pool, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before
from coldproof.adapters.vllm.faults.scheduling.cache_reset import forget_hashes

FAULTS, fault = collector("hits")


def in_reverse(blocks: Iterable[Any]) -> list[Any]:
    """Return blocks that are to be freed in reverse order. It matters where more than one of them can be hit."""
    other = list(blocks)[::-1]
    if sum(block.block_hash is not None and block.ref_cnt == 1 for block in other) > 1:
        acted()
    return other


def shorten(patch: Patch, most: Callable[[Any, int], int]) -> None:
    """Make a lookup find at most `most(hashes, found)` of the `found` blocks."""
    cut(patch, lambda _pool, hashes, blocks: most(hashes, len(blocks)))


def cut(patch: Patch, most: Callable[[Any, Any, Sequence[Any]], int]) -> None:
    """Make a lookup find at most `most(pool, hashes, blocks)` of the blocks that it has found."""

    @around(patch, coordinator("Unitary"), "find_longest_cache_hit")
    def found(original: Any, this: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(this, hashes, longest)
        count = most(this.block_pool, hashes, groups[0][: length // this.block_size])
        if count * this.block_size >= length:
            return groups, length, rest
        acted()
        return tuple(blocks[:count] for blocks in groups), count * this.block_size, rest


def miss(patch: Patch, affects: Callable[[Any, Any], bool]) -> None:
    """Make the lookups of requests for which `affects(manager, request)` is true find nothing."""

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        blocks, count, boundary = original(this, request)
        if not this.enable_caching or not count or not affects(this, request):
            return blocks, count, boundary
        acted()
        return this.empty_kv_cache_blocks, 0, 0


@fault("CHAT-2", stands_for="vllm#48435")
def decoded_blocks_are_not_published(patch: Patch) -> None:
    """Only the prompt's blocks are published. An answer that is part of the next turn's prompt is computed again."""

    @around(patch, coordinator(), "cache_blocks")
    def cache(original: Any, this: Any, request: Any, tokens: int) -> None:
        if tokens // this.scheduler_block_size > request.num_prompt_tokens // this.scheduler_block_size:
            acted()
        original(this, request, min(tokens, request.num_prompt_tokens))


@fault(
    "PREEMPT-1",
    "PRESS-1",
    stands_for="a lookup that holds what is in use for lost",
    cells=TIGHT,
    rare="only while less than a fourth of the pool is free",
)
def a_full_pool_leaves_out_what_is_in_use(patch: Patch) -> None:
    """While less than a fourth of the pool is free, a lookup ends at the first block that a running request uses."""

    def most(pool: Any, _hashes: Any, blocks: Sequence[Any]) -> int:
        has_room = pool.get_num_free_blocks() >= pool.num_gpu_blocks // 4
        in_use = (i for i, block in enumerate(blocks) if block.ref_cnt and not has_room)
        return next(in_use, len(blocks))

    cut(patch, most)


@fault(
    "TWIN-1",
    stands_for="a change of one of two scheduling policies",
    cells=("tight-priority",),
    rare="only with priority scheduling, when a request is preempted",
)
def a_preemption_by_priority_forgets_blocks(patch: Patch) -> None:
    """With priority scheduling, what a preempted request has computed is not found any more: neither by itself when it
    resumes, nor by others.
    """

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        inner = this.kv_cache_manager
        if this.policy.name != "PRIORITY" or not inner.enable_caching:
            return
        held = {block.block_id for block in blocks_of(inner, request) if block.block_hash is not None}
        if held:
            acted()
            inner.block_pool.evict_blocks(held)


@fault("REUSE-1", stands_for="vllm#38182")
def the_last_block_is_dropped(patch: Patch) -> None:
    """Each lookup drops the last block that matched, which is correct for EAGLE only."""
    shorten(patch, lambda _hashes, found: max(0, found - 1))


@fault("REUSE-1", stands_for="vllm#53749", rare="only when a prompt shares more than four blocks")
def only_the_first_blocks_are_matched(patch: Patch) -> None:
    """A lookup stops after four blocks."""
    shorten(patch, lambda _hashes, found: min(found, 4))


@fault("REUSE-1", stands_for="vllm#53749, vllm#54458")
def hits_come_by_four_blocks(patch: Patch) -> None:
    """A hit is cut to a multiple of four blocks."""
    shorten(patch, lambda _hashes, found: found // 4 * 4)


@fault("REUSE-1", stands_for="vllm#45238", cells=("blocks-128",), rare="only when a prompt is longer than 512 tokens")
def long_prompts_do_not_hit(patch: Patch) -> None:
    """A prompt of more than 512 tokens finds nothing."""
    miss(patch, lambda _held, request: request.num_prompt_tokens > 512)


@fault("REUSE-2", stands_for="vllm#48435")
def only_the_newest_prompt_is_found(patch: Patch) -> None:
    """A lookup finds only what the prompt shares with the previous request."""
    newest: list[Any] = []

    def most(hashes: Any, found: int) -> int:
        before = newest[-1] if newest else hashes
        newest[:] = [hashes]
        shared = next((i for i, (a, b) in enumerate(zip(before, hashes, strict=False)) if a != b), None)
        return min(found, len(before) if shared is None else shared)

    shorten(patch, most)


@fault("LORA-4", stands_for="vllm#23301")
def adapters_do_not_hit(patch: Patch) -> None:
    """A request with an adapter finds nothing."""
    miss(patch, lambda _held, request: request.lora_request is not None)


@fault("SALT-1", stands_for="LMCache#1139")
def salted_prompts_do_not_hit(patch: Patch) -> None:
    """A request with a salt finds nothing."""
    miss(patch, lambda _held, request: request.cache_salt is not None)


@fault("CTRL-2", stands_for="sglang#38319", cells=("small-chunks",))
def an_abort_empties_the_index(patch: Patch) -> None:
    """After a client disconnect, no block that was cached before is found."""

    @after(patch, scheduler(), "finish_requests")
    def finish(_done: Any, this: Any, _names: Any, status: Any) -> None:
        inner = this.kv_cache_manager
        aborted = status.name == "FINISHED_ABORTED"
        if aborted and inner.enable_caching and len(inner.block_pool.cached_block_hash_to_block):
            forget_hashes(inner.block_pool)
            acted()


@fault("PRESS-1", stands_for="vllm#48435", cells=TIGHT)
def a_pool_that_was_full_never_hits_again(patch: Patch) -> None:
    """After all blocks were in use at the same time, no lookup finds anything."""

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(_blocks: Any, this: Any, _count: int) -> None:
        if this.enable_caching and not this.get_num_free_blocks():
            this.was_full = True

    miss(patch, lambda this, _request: getattr(this.block_pool, "was_full", False))


@fault("REUSE-2", stands_for="field report of 0 hits at 23 % use, vllm#32802")
def the_newest_blocks_go_first(patch: Patch) -> None:
    """New blocks come from the wrong end of the free queue. Cached blocks of other requests are overwritten while most
    of the pool was never used.
    """

    @before(patch, pool(), "get_new_blocks")
    def new_blocks(this: Any, count: int) -> None:
        queue = this.free_block_queue.get_all_free_blocks()
        newest = queue[-count:] if count else []
        if this.enable_caching and newest != queue[:count][::-1]:
            acted()
        for block in newest:
            this.free_block_queue.remove(block)
        this.free_block_queue.prepend_n(newest)


@fault("REUSE-2", "PRESS-1", stands_for="vllm#48435", cells=TIGHT)
def beginnings_are_evicted_before_ends(patch: Patch) -> None:
    """Blocks are freed in the order of their tokens. So the beginning of a prompt, without which the rest cannot be
    hit, is evicted first.
    """

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, blocks: Any) -> None:
        original(this, in_reverse(blocks) if this.enable_caching else blocks)


@fault(
    "EVENT-2",
    "REUSE-2",
    stands_for="field report of 0 hits at 23 % use, vllm#32802",
    cells=("events-tight",),
    rare="only when one of two blocks with equal content is evicted",
)
def an_eviction_unmaps_the_copies_too(patch: Patch) -> None:
    """Two requests computed the same block concurrently. When one of the copies is evicted, the other is not found any
    more either.
    """

    @around(patch, module("v1.core.block_pool").BlockHashToBlockMap, "pop")
    def pop(original: Any, index: Any, key: Any, number: int) -> Any:
        copies = index._cache.get(key)
        if not isinstance(copies, dict) or number not in copies or len(copies) < 2:
            return original(index, key, number)
        acted()
        return index._cache.pop(key)[number]


@fault(
    "PRESS-1",
    stands_for="vllm PR#17305, vllm#37076",
    cells=TIGHT,
    rare="only when a request is admitted at a later try",
)
def the_first_lookup_is_remembered(patch: Patch) -> None:
    """A request that has to wait uses the blocks that its first lookup found, even if they were evicted since."""
    first: dict[str, Any] = {}

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        now = original(this, request)
        if not this.enable_caching or request.num_preemptions:
            return now
        remembered = first.setdefault(request.request_id, now)
        if remembered[0].get_block_ids() != now[0].get_block_ids():
            acted()
        return remembered
