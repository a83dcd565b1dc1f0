"""Hits that are wrong or lost only at rare lengths, and blocks that are not kept only in rare cases."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.blocks.lost_hits import shorten
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, manager, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before, state_of

FAULTS, fault = collector("rare_hits")

WORTH_A_LOOKUP = 6  # blocks


def unpublish(this: Any, blocks: list[Any]) -> None:
    """Remove those of a manager's blocks from the index that nobody but their owner holds."""
    own = {block.block_id for block in blocks if block.block_hash is not None and block.ref_cnt == 1}
    if this.enable_caching and own:
        this.evict_blocks(own)
        acted()


@fault(
    "CHAT-1",
    "REUSE-2",
    stands_for="vllm#53749",
    rare="only for a prompt of six blocks or more of which exactly one is cached",
)
def a_single_block_of_a_long_prompt_is_no_hit(patch: Patch) -> None:
    """A prompt of six blocks or more that finds a single block is computed from its start."""
    shorten(patch, lambda hashes, found: 0 if found == 1 and len(hashes) >= WORTH_A_LOOKUP else found)


@fault(
    "CHAT-1",
    "REUSE-2",
    stands_for="LMCache#1969, vllm PR#18411",
    rare="only for a prompt of which all whole blocks but the last one are cached",
)
def a_missing_last_block_counts_as_computed(patch: Patch) -> None:
    """A prompt that finds all its whole blocks but the last one counts that as computed too. It gets a new block, into
    which nothing is written.
    """

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        blocks, count, boundary = original(this, request)
        size = this.block_pool.hash_block_size
        missing = len(request.block_hashes) - count // size
        if not this.enable_caching or not count or missing != 1 or count + size >= request.num_tokens:
            return blocks, count, boundary
        acted()
        return blocks, count + size, boundary


@fault(
    "CHAT-1",
    stands_for="vllm PR#17305, vllm PR#37152",
    rare="only for prompts with the same first block that are admitted in one step and differ later",
)
def a_steps_lookups_are_remembered_by_first_block(patch: Patch) -> None:
    """Within a step, a prompt gets the hit of the first prompt that has the same first block."""

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        state_of(this.kv_cache_manager, "found", dict).clear()

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        right = original(this, request)
        if not this.prefix_cache_lookup_enabled(request) or not request.block_hashes:
            return right
        remembered = state_of(this, "found", dict[Any, Any]).setdefault(request.block_hashes[0], right)
        if remembered[1] >= request.num_tokens or remembered[0].get_block_ids() == right[0].get_block_ids():
            return right
        acted()
        return remembered


@fault(
    "PRESS-1",
    stands_for="vllm#48435, a cache that large scans must not flush",
    cells=TIGHT,
    rare="only for prompts longer than half the pool",
)
def prompts_longer_than_half_the_pool_are_not_kept(patch: Patch) -> None:
    """When a request ends whose prompt is longer than half the pool, its blocks leave the index."""

    @before(patch, manager(), "free")
    def free(this: Any, request: Any) -> None:
        pool = (this.block_pool.num_gpu_blocks - 1) * this.block_pool.hash_block_size
        if 2 * request.num_prompt_tokens > pool:
            unpublish(this, blocks_of(this, request))


@fault(
    "CHAT-1",
    "PRESS-1",
    stands_for="vllm#45238",
    cells=("small-chunks", "chunks-side-by-side", "tight"),
    rare="only where a chunk of exactly one token fills a block",
)
def a_block_that_a_chunk_of_one_token_fills_is_not_published(patch: Patch) -> None:
    """A chunk of one token is taken for decode of an unfinished answer: the block that it fills is not published."""

    @after(patch, manager(), "allocate_slots")
    def allocate(new: Any, this: Any, request: Any, count: int, *_: Any, **named: Any) -> None:
        size = this.block_pool.hash_block_size
        end = request.num_computed_tokens + named.get("num_new_computed_tokens", 0) + count
        if new is not None and count == 1 and end % size == 0 and end <= request.num_prompt_tokens:
            unpublish(this, blocks_of(this, request)[end // size - 1 : end // size])
