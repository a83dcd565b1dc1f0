"""Blocks that never come back, and blocks that nobody should have been given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, pool, scheduler

FAULTS, fault = collector("leaks")


def lose_last_block(held: Any, request: Any) -> bool:
    """Have a request forget its last block: nobody is going to free it. False where it has none."""
    mine = held.coordinator.single_type_managers[0].req_to_blocks.get(request.request_id)
    if not held.enable_caching or not mine:
        return False
    mine.pop()
    acted()
    return True


@fault("PRESS-4", stands_for="vllm#46283", cells=("tight",))
def aborted_requests_keep_their_blocks(patch: Patch) -> None:
    """What an aborted request held is never given back."""

    def free(original: Any, held: Any, request: Any, delay_free_blocks: bool = False) -> Any:
        leaks = held.kv_cache_manager.enable_caching and request.status.name == "FINISHED_ABORTED"
        if leaks:
            acted()
        return original(held, request, delay_free_blocks or leaks)

    around(patch, scheduler(), "_free_request", free)


@fault("PRESS-4", stands_for="vllm#46283", cells=("tight",))
def lost_blocks_do_not_count_as_used(patch: Patch) -> None:
    """An aborted request's last block is never given back, and the pool's gauge takes it for free."""

    def free(original: Any, held: Any, request: Any, delay_free_blocks: bool = False) -> Any:
        if request.status.name == "FINISHED_ABORTED" and lose_last_block(held.kv_cache_manager, request):
            held.kv_cache_manager.block_pool.lost = getattr(held.kv_cache_manager.block_pool, "lost", 0) + 1
        return original(held, request, delay_free_blocks)

    def usage(_original: Any, held: Any) -> float:
        free_blocks = held.get_num_free_blocks() + getattr(held, "lost", 0)
        return float(1 - free_blocks / max(1, held.num_gpu_blocks - 1))

    around(patch, scheduler(), "_free_request", free)
    around(patch, pool(), "get_usage", usage)


@fault("PRESS-4", stands_for="TRT#12933", cells=("tight",), rare="at every twentieth request that ends or is preempted")
def each_twentieth_request_loses_a_block(patch: Patch) -> None:
    """Of every twentieth request the last block is never given back."""

    def free(original: Any, held: Any, request: Any) -> None:
        held.freed = getattr(held, "freed", 0) + 1  # of this engine: another one in this process is as good as new
        if held.freed % 20 == 0:
            lose_last_block(held, request)
        original(held, request)

    around(patch, manager(), "free", free)


@fault("PREEMPT-1", "PRESS-4", stands_for="TRT#12933", cells=("tight",))
def a_preemption_loses_a_block(patch: Patch) -> None:
    """Of a preempted request the last block is never given back."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        lose_last_block(held.kv_cache_manager, request)
        original(held, request, *rest, **named)

    around(patch, scheduler(), "_preempt_request", preempt)


@fault("PREEMPT-1", stands_for="vllm PR#18411", cells=("tight",))
def a_preemption_frees_nothing(patch: Patch) -> None:
    """None of a preempted request's blocks is given back."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        inner = held.kv_cache_manager
        if inner.enable_caching and inner.pop_blocks_for_free(request):
            acted()
        original(held, request, *rest, **named)

    around(patch, scheduler(), "_preempt_request", preempt)


def count_twice(patch: Patch, when: Callable[[Any], bool]) -> None:
    """Have a hit count as two users of each block for which `when` is true."""

    def touch(original: Any, held: Any, blocks: Any) -> None:
        twice = [block for block in blocks if held.enable_caching and when(block)]
        original(held, blocks)
        for block in twice:
            block.ref_cnt += 1
            acted()

    around(patch, pool(), "touch", touch)


@fault("PRESS-4", stands_for="TRT#12933, vllm#43382", cells=("tight",))
def a_hit_block_is_held_twice(patch: Patch) -> None:
    """A hit counts as two users of a block, of whom one never lets go of it."""
    count_twice(patch, lambda block: not block.is_null)


@fault(
    "PRESS-4",
    stands_for="jundot/omlx PR#3087, TRT#12933",
    cells=("tight",),
    rare="when a block is hit that somebody uses",
)
def a_hit_block_in_use_is_held_twice(patch: Patch) -> None:
    """A hit on a block that somebody else is using counts as two users, of whom one never lets go of it."""
    count_twice(patch, lambda block: block.ref_cnt > 0 and not block.is_null)


@fault(
    "PREEMPT-1", "PRESS-1", stands_for="ascend#15990", cells=("tight",), rare="when a request takes the last free block"
)
def the_null_block_is_handed_out(patch: Patch) -> None:
    """Whoever asks for the last free block gets the null block, which nobody owns and several may have."""

    def new_blocks(original: Any, held: Any, count: int) -> Any:
        blocks = original(held, count)
        if held.enable_caching and count and not held.get_num_free_blocks():
            blocks[-1].ref_cnt -= 1
            held.free_block_queue.append(blocks[-1])
            held.null_block.ref_cnt += 1
            blocks[-1] = held.null_block
            acted()
        return blocks

    around(patch, pool(), "get_new_blocks", new_blocks)
