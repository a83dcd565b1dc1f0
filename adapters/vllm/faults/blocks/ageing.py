"""Faults of old engines: what was evicted, reset, preempted, paused, asked or counted often enough goes wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.blocks.rare_hits import unpublish
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, manager, module, pool, scheduler
from coldproof.adapters.vllm.faults.patching import (
    TIGHT,
    acted,
    after,
    after_lookup,
    around,
    before,
    count_up,
    state_of,
)
from coldproof.adapters.vllm.faults.reporting.metrics import change_recorded_hits
from coldproof.adapters.vllm.faults.scheduling.weight_updates import change_pauses, indexed_blocks

FAULTS, fault = collector("ageing")

GENERATIONS = EPOCHS = 4
MOST_HITS = 2**16 - 1  # tokens


@fault(
    "PRESS-1",
    stands_for="vllm PR#24084, a generation number that wraps",
    cells=TIGHT,
    rare="only for a prompt whose block has been allocated four times since",
)
def generations_of_blocks_have_two_bits(patch: Patch) -> None:
    """An eviction only raises the block's generation. After four of them, the block is found again by its old hash."""
    key_of = module("v1.core.block_pool").make_block_hash_with_group_id

    @before(patch, pool(), "_maybe_evict_cached_block")
    def evict(this: Any, block: Any) -> None:
        if block.block_hash is not None:
            generation = state_of(this, "generations", Counter[int])[block.block_id]
            state_of(this, "former", dict[Any, Any])[block.block_hash] = block, generation

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(blocks: Any, this: Any, _count: int) -> None:
        state_of(this, "generations", Counter[int]).update(block.block_id for block in blocks)

    @around(patch, pool(), "get_cached_block")
    def cached(original: Any, this: Any, hashed: Any, groups: Any) -> Any:
        found, former = original(this, hashed, groups), state_of(this, "former", dict[Any, Any])
        if found or len(groups) > 1 or key_of(hashed, groups[0]) not in former:
            return found
        block, generation = former[key_of(hashed, groups[0])]
        age = state_of(this, "generations", Counter[int])[block.block_id] - generation
        if not age or age % GENERATIONS:
            return found
        acted()
        return [block]

    @after(patch, pool(), "reset_prefix_cache")
    def reset(done: Any, this: Any) -> None:
        if done:
            state_of(this, "former", dict).clear()


@fault(
    "CTRL-1",
    stands_for="sglang#26792, an epoch that wraps",
    rare="only for a prompt that is sent again after exactly four resets, if its blocks were not allocated since",
)
def resets_are_counted_modulo_four(patch: Patch) -> None:
    """A reset only raises an epoch. After four resets, the blocks of then are found again."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        entries = indexed_blocks(this)
        if not original(this):
            return False
        epochs = state_of(this, "epochs", list[Any])
        epochs.append(entries)
        if len(epochs) >= EPOCHS:
            for key, block, tokens in epochs.pop(0):
                this._insert_block_hash(key, block, num_tokens=tokens)
                state_of(this, "old", set[int]).add(block.block_id)
        return True

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(blocks: Any, this: Any, _count: int) -> None:
        used, epochs = {block.block_id for block in blocks}, state_of(this, "epochs", list[Any])
        epochs[:] = [[entry for entry in epoch if entry[1].block_id not in used] for epoch in epochs]
        state_of(this, "old", set[int]).difference_update(used)

    @after_lookup(patch)
    def found(this: Any, _request: Any, blocks: Any, _count: int) -> None:
        old = state_of(this.block_pool, "old", set[int])
        if any(block.block_id in old for block in blocks.blocks[0]):
            acted()


@fault(
    "PREEMPT-1",
    stands_for="vllm#41190, TRT#18891",
    cells=TIGHT,
    rare="only at every fifth preemption of a request that has answered",
)
def every_fifth_preemption_begins_the_answer_again(patch: Patch) -> None:
    """At every fifth preemption, the request forgets its answer so far and begins it again when it resumes."""

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        answered = this.kv_cache_manager.enable_caching and request.num_output_tokens
        if not answered or count_up(this, "preemptions") % 5:
            return
        acted()
        prompt = request.num_prompt_tokens
        del request._all_token_ids[prompt:]
        del request._output_token_ids[:]
        del request.block_hashes[prompt // this.kv_cache_manager.block_pool.hash_block_size :]


@fault("REUSE-1", stands_for="a cache that leaves out one request of a hundred", rare="only every hundredth request")
def every_hundredth_request_publishes_nothing(patch: Patch) -> None:
    """When every hundredth request ends, its blocks leave the index."""

    @before(patch, manager(), "free")
    def free(this: Any, request: Any) -> None:
        if count_up(this, "freed") % 100 == 0:
            unpublish(this, blocks_of(this, request))


@fault("REUSE-3", stands_for="vllm#43736", rare="only after 65,535 hit tokens")
def the_hit_counter_stops_at_65535(patch: Patch) -> None:
    """The counter of hit tokens has sixteen bits and stops at its largest value."""

    def change(this: Any, _request: Any, hits: int) -> int:
        before = getattr(this, "counted_hits", 0)
        this.counted_hits = min(before + hits, MOST_HITS)
        return int(this.counted_hits - before)

    change_recorded_hits(patch, change)


@fault("WEIGHT-1", "WEIGHT-2", stands_for="NeMo-RL PR#4018, omni#6739", rare="only every second pause")
def every_second_pause_clears_nothing(patch: Patch) -> None:
    """Every second pause that should clear the cache confirms it and clears nothing."""

    def change(this: Any, mode: str, clear: bool) -> tuple[str, bool]:
        skipped = clear and count_up(this, "cleared_pauses") % 2 == 0
        if skipped:
            acted()
        return mode, clear and not skipped

    change_pauses(patch, change)
