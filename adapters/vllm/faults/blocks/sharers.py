"""Blocks that an exact number of requests share, and copies of one block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, manager, module, pool, scheduler
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before, state_of

FAULTS, fault = collector("sharers")

MOST_SHARERS = 16  # of one block, before it is copied
THREE_COPIES = 3


def free_early(patch: Patch) -> Callable[[Any, list[Any]], None]:
    """Return a function that frees blocks of a pool which a request goes on using.

    The fault acts when such a block is allocated again. When the request ends, a block that is free is not freed.
    """

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, blocks: Any) -> None:
        early, used = state_of(this, "freed_early", set[int]), []
        for block in blocks:
            if block.ref_cnt or block.is_null:
                used.append(block)
            else:
                early.discard(block.block_id)
        original(this, used)

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(blocks: Any, this: Any, _count: int) -> None:
        early, handed_out = state_of(this, "freed_early", set[int]), {block.block_id for block in blocks}
        if early & handed_out:
            acted()
        early -= handed_out

    def release(this: Any, blocks: list[Any]) -> None:
        this.free_blocks(blocks)
        state_of(this, "freed_early", set[int]).update(block.block_id for block in blocks if not block.ref_cnt)

    return release


@fault(
    "PRESS-2",
    "CHAT-1",
    stands_for="tenstorrent/tt-xla PR#4190, vllm#22103",
    cells=("default", "tight"),
    rare="only where 17 requests share a block at the same time",
)
def the_seventeenth_sharer_gets_an_empty_copy(patch: Patch) -> None:
    """Sixteen requests share a block at most. The next one gets a block of its own, into which nothing is copied."""

    @after(patch, manager(), "allocate_slots")
    def allocate(new: Any, this: Any, request: Any, *_: Any, **named: Any) -> None:
        if new is None or not this.enable_caching or named.get("new_computed_blocks") is None:
            return
        blocks = this.block_pool
        table = this.coordinator.single_type_managers[0].req_to_blocks[request.request_id]
        crowded = [i for i, block in enumerate(table) if block.ref_cnt > MOST_SHARERS and not block.is_null]
        if crowded and len(crowded) <= blocks.get_num_free_blocks():
            shared = [table[i] for i in crowded]
            for i, own in zip(crowded, blocks.get_new_blocks(len(crowded)), strict=True):
                table[i] = own
            blocks.free_blocks(shared[::-1])
            acted()


@fault(
    "PRESS-1",
    "EVENT-2",
    stands_for="vllm PR#24084, kvcached#362",
    cells=("tight", "events-tight"),
    rare="only when one of three or more blocks with equal content is evicted and hit before the others",
)
def one_evicted_copy_of_three_stays_in_the_index(patch: Patch) -> None:
    """Where three blocks have the same hash, an eviction of one of them does not remove it from the index."""

    @around(patch, module("v1.core.block_pool").BlockHashToBlockMap, "pop")
    def pop(original: Any, index: Any, key: Any, number: int) -> Any:
        copies = index._cache.get(key)
        if isinstance(copies, dict) and len(copies) >= THREE_COPIES and number in copies:
            return copies[number]
        return original(index, key, number)

    count_wrong_hits(patch)


@fault(
    "PRESS-2",
    "PRESS-1",
    stands_for="sgl-project/mini-sglang PR#142",
    cells=TIGHT,
    rare="only where decode of two requests fills blocks with equal content, and the pool then needs one of them",
)
def duplicates_that_decode_fills_are_freed(patch: Patch) -> None:
    """A block that decode fills and that is cached already is freed as a duplicate, while its request still uses it."""
    release = free_early(patch)

    @after(patch, pool(), "cache_full_blocks")
    def cached(_result: Any, this: Any, **named: Any) -> None:
        request, index = named["request"], this.cached_block_hash_to_block
        first = max(named["num_cached_blocks"], request.num_prompt_tokens // named["block_size"])
        filled = named["blocks"][first : named["num_full_blocks"]] if request.num_output_tokens else []
        copies = [block for block in filled if isinstance(index._cache.get(block.block_hash), dict)]
        release(this, [block for block in copies if block.ref_cnt == 1])


@fault(
    "PRESS-4",
    stands_for="TRT#12933, vllm#42571",
    cells=TIGHT,
    rare="only when two requests that share a block end in the same step",
)
def two_holders_that_end_in_one_step_leak_what_they_share(patch: Patch) -> None:
    """Within a step, a block is freed once, even if several requests that hold it end."""

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        state_of(this.kv_cache_manager.block_pool, "freed_in_step", set).clear()

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, blocks: Any) -> None:
        before, freed = state_of(this, "freed_in_step", set[int]), []
        for block in blocks:
            if this.enable_caching and block.block_id in before and block.ref_cnt and not block.is_null:
                acted()
                continue
            before.add(block.block_id)
            freed.append(block)
        original(this, freed)


@fault(
    "PREEMPT-2",
    stands_for="vllm#42571, sgl-project/mini-sglang PR#142",
    cells=TIGHT,
    rare="only when a request is preempted that shares blocks with exactly one other",
)
def a_preemption_frees_what_one_other_request_holds(patch: Patch) -> None:
    """A preemption frees a block of two holders completely. The other one goes on with a free block."""
    release = free_early(patch)

    @around(patch, scheduler(), "_preempt_request")
    def preempt(original: Any, this: Any, request: Any, *rest: Any, **named: Any) -> None:
        inner = this.kv_cache_manager
        shared = [block for block in blocks_of(inner, request) if block.ref_cnt == 2 and not block.is_null]
        original(this, request, *rest, **named)
        if inner.enable_caching:
            release(inner.block_pool, shared[::-1])


@fault(
    "PRESS-1",
    "MIXED-1",
    stands_for="vllm PR#10507",
    cells=TIGHT,
    rare="only for an answer of one token on a hit, while another request needs blocks",
)
def hits_of_answers_of_one_token_are_not_held(patch: Patch) -> None:
    """A request for one token is expected to end in its step: the blocks that it hit can be allocated at once."""
    release = free_early(patch)

    @after(patch, manager(), "allocate_slots")
    def allocate(new: Any, this: Any, request: Any, *_: Any, **named: Any) -> None:
        hit = named.get("new_computed_blocks")
        if new is not None and this.enable_caching and hit is not None and request.max_tokens == 1:
            release(this.block_pool, list(hit.blocks[0])[::-1])
