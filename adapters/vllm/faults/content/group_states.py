"""Several groups of KV-cache blocks: faults in rare states of one group beside the others."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.blocks.sharers import free_early
from coldproof.adapters.vllm.faults.content.cache_groups import block_numbers, groups_of
from coldproof.adapters.vllm.faults.engine_parts import coordinator, manager, scheduler
from coldproof.adapters.vllm.faults.patching import acted, around, before, override

FAULTS, fault = collector("group_states")

SMALL_POOL = ("groups-window-tight",)


class SinglePass(list[Any]):
    """Groups that a lookup takes for two, of which one pass suffices."""

    def __len__(self) -> int:
        """Return two."""
        return 2


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
    "GROUP-1",
    stands_for="vllm#51771, TRT PR#10183",
    cells=("groups-two-windows", "groups-five"),
    rare="only where a later group has a shorter hit than the window before it",
)
def three_groups_are_looked_up_in_one_pass(patch: Patch) -> None:
    """With three kinds of layers, a lookup asks each once. A window that is asked early keeps blocks behind the end of
    the hit, over which the request then writes.
    """

    @around(patch, coordinator("Hybrid"), "find_longest_cache_hit")
    def found(original: Any, this: Any, hashes: Any, longest: int) -> Any:
        right = original(this, hashes, longest)
        if len(this.attention_groups) <= 2:
            return right
        with override(this, "attention_groups", SinglePass(this.attention_groups)):
            once = original(this, hashes, longest)
        if block_numbers(once) != block_numbers(right):
            acted()
        return once


@fault(
    "GROUP-1",
    stands_for="vllm PR#55601, tenstorrent/tt-xla PR#4190",
    cells=("groups-state-blocks",),
    rare="only when two requests hit a part of the same block in one step",
)
def two_hits_on_a_part_of_a_block_share_one_copy(patch: Patch) -> None:
    """A block is copied once in a step. A second request that hits a part of it gets a new block without the part."""

    @around(patch, manager(), "take_kv_cache_block_copies")
    def copies(original: Any, this: Any) -> Any:
        planned, kept = original(this)
        once = list({copy.src_block_id: copy for copy in reversed(planned)}.values())[::-1]
        if len(once) < len(planned):
            acted()
        return once, kept
