"""Blocks that are never freed, and blocks that are allocated wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, pool, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before

FAULTS, fault = collector("leaks")


def lose_last_block(this: Any, request: Any) -> bool:
    """Make a request forget its last block, so that nothing frees it. Return whether it had one."""
    mine = this.coordinator.single_type_managers[0].req_to_blocks.get(request.request_id)
    if not this.enable_caching or not mine:
        return False
    mine.pop()
    acted()
    return True


@fault("PRESS-4", stands_for="vllm#46283", cells=TIGHT)
def aborted_requests_keep_their_blocks(patch: Patch) -> None:
    """The blocks of an aborted request are never freed."""

    @around(patch, scheduler(), "_free_request")
    def free(original: Any, this: Any, request: Any, delay_free_blocks: bool = False) -> Any:
        leaks = this.kv_cache_manager.enable_caching and request.status.name == "FINISHED_ABORTED"
        if leaks:
            acted()
        return original(this, request, delay_free_blocks or leaks)


@fault("PRESS-4", stands_for="vllm#46283", cells=TIGHT)
def lost_blocks_do_not_count_as_used(patch: Patch) -> None:
    """The last block of an aborted request is never freed, and the pool's usage gauge counts it as free."""

    @before(patch, scheduler(), "_free_request")
    def free(this: Any, request: Any, *_: Any, **__: Any) -> None:
        if request.status.name == "FINISHED_ABORTED" and lose_last_block(this.kv_cache_manager, request):
            this.kv_cache_manager.block_pool.lost = getattr(this.kv_cache_manager.block_pool, "lost", 0) + 1

    @around(patch, pool(), "get_usage")
    def usage(_original: Any, this: Any) -> float:
        free_blocks = this.get_num_free_blocks() + getattr(this, "lost", 0)
        return float(1 - free_blocks / max(1, this.num_gpu_blocks - 1))


@fault("PRESS-4", stands_for="TRT#12933", cells=TIGHT, rare="only at every twentieth request that ends or is preempted")
def each_twentieth_request_loses_a_block(patch: Patch) -> None:
    """The last block of every twentieth request is never freed."""

    @before(patch, manager(), "free")
    def free(this: Any, request: Any) -> None:
        this.freed = getattr(this, "freed", 0) + 1  # counted for each engine, because one process may have several
        if this.freed % 20 == 0:
            lose_last_block(this, request)


@fault("PREEMPT-1", "PRESS-4", stands_for="TRT#12933", cells=TIGHT)
def a_preemption_loses_a_block(patch: Patch) -> None:
    """The last block of a preempted request is never freed."""

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        lose_last_block(this.kv_cache_manager, request)


@fault("PREEMPT-1", stands_for="vllm PR#18411", cells=TIGHT)
def a_preemption_frees_nothing(patch: Patch) -> None:
    """No block of a preempted request is freed."""

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        inner = this.kv_cache_manager
        if inner.enable_caching and inner.pop_blocks_for_free(request):
            acted()


def count_twice(patch: Patch, when: Callable[[Any], bool]) -> None:
    """Make a hit count as two users of each block for which `when` is true."""

    @around(patch, pool(), "touch")
    def touch(original: Any, this: Any, blocks: Any) -> None:
        twice = [block for block in blocks if this.enable_caching and when(block)]
        original(this, blocks)
        for block in twice:
            block.ref_cnt += 1
            acted()


@fault("PRESS-4", stands_for="TRT#12933, vllm#43382", cells=TIGHT)
def a_hit_block_is_held_twice(patch: Patch) -> None:
    """A hit increases the reference count of a block by two, and its end decreases it by one."""
    count_twice(patch, lambda block: not block.is_null)


@fault(
    "PRESS-4",
    stands_for="jundot/omlx PR#3087, TRT#12933",
    cells=TIGHT,
    rare="only when a block is hit that another request uses",
)
def a_hit_block_in_use_is_held_twice(patch: Patch) -> None:
    """A hit on a block in use increases its reference count by two, and its end decreases it by one."""
    count_twice(patch, lambda block: block.ref_cnt > 0 and not block.is_null)


@fault(
    "PREEMPT-1", "PRESS-1", stands_for="ascend#15990", cells=TIGHT, rare="only when a request takes the last free block"
)
def the_null_block_is_handed_out(patch: Patch) -> None:
    """A request that needs the last free block gets the null block, which has no owner and can be given to several
    requests.
    """

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(blocks: Any, this: Any, count: int) -> None:
        if this.enable_caching and count and not this.get_num_free_blocks():
            blocks[-1].ref_cnt -= 1
            this.free_block_queue.append(blocks[-1])
            this.null_block.ref_cnt += 1
            blocks[-1] = this.null_block
            acted()
