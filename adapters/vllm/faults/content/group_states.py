"""Several groups of KV-cache blocks: faults in rare states of one group beside the others."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.blocks.sharers import free_early
from coldproof.adapters.vllm.faults.content.cache_groups import groups_of
from coldproof.adapters.vllm.faults.engine_parts import scheduler
from coldproof.adapters.vllm.faults.patching import acted, around, before

FAULTS, fault = collector("group_states")

SMALL_POOL = ("groups-window-tight",)


@fault(
    "PRESS-1",
    "MIXED-1",
    stands_for="jundot/omlx PR#3087, sgl-project/mini-sglang PR#142",
    cells=SMALL_POOL,
    rare="only when a request hits blocks of a window that another request uses",
)
def a_window_in_use_is_hit_without_being_held(patch: Patch) -> None:
    """A request that hits blocks of a window which another one uses does not hold them. They are free when one ends."""
    free_early(patch)  # what is free is not freed again

    @around(patch, groups_of("SlidingWindow"), "add_local_computed_blocks")
    def add(original: Any, this: Any, request_id: str, blocks: Any, *counts: int) -> None:
        used = [block for block in blocks if block.ref_cnt and not block.is_null]
        original(this, request_id, blocks, *counts)
        own = {block.block_id for block in this.req_to_blocks[request_id]}  # those before the window are not added
        for block in used if this.enable_caching else ():
            if block.block_id in own:
                block.ref_cnt -= 1
                acted()


@fault(
    "PREEMPT-1",
    "PRESS-4",
    stands_for="UCM PR#1059, TRT#12933",
    cells=SMALL_POOL,
    rare="only at a preemption of a request with a second group of blocks",
)
def a_preemption_loses_a_block_of_the_second_group(patch: Patch) -> None:
    """A preemption frees all blocks of the first group, and all but the last one of the second group."""

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        inner = this.kv_cache_manager
        if inner.enable_caching and inner.num_kv_cache_groups > 1:
            blocks = inner.coordinator.single_type_managers[1].req_to_blocks[request.request_id]
            if blocks and not blocks.pop().is_null:
                acted()


@fault(
    "PREEMPT-1",
    "MIXED-1",
    stands_for="a window's edge that is off by one, vllm#46453",
    cells=SMALL_POOL,
    rare="only where the first token of a step reads one last token of a block, and the step needs a block",
)
def a_block_leaves_its_window_a_token_early(patch: Patch) -> None:
    """A block is freed while the next token still reads its last token. The same step may give it to a request."""

    @around(patch, groups_of("SlidingWindow"), "get_num_skipped_tokens")
    def skipped(original: Any, this: Any, computed: int) -> int:
        right = int(original(this, computed))
        if not right or not this.enable_caching:
            return right
        if right // this.block_size != (right + 1) // this.block_size:
            acted()
        return right + 1
