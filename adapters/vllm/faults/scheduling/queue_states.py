"""Rare states of the queue: negative priorities, long prompts, many requests, requests preempted again and again."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before
from coldproof.adapters.vllm.faults.scheduling.stalls import refuse_admission

FAULTS, fault = collector("queue_states")

UNSIGNED = 2**32
QUEUE = 16  # requests
TRIES = 4


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#28558, a priority read as an unsigned number",
    cells=("tight-priority",),
    rare="only for requests with a negative priority, the most urgent ones, where others compete with them",
)
def negative_priorities_come_last(patch: Patch) -> None:
    """A negative priority is read as a large positive one: the request is admitted last and preempted first."""

    @before(patch, scheduler(), "add_request")
    def add(this: Any, request: Any) -> None:
        if this.kv_cache_manager.enable_caching and request.priority < 0:
            request.priority += UNSIGNED

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        if request.priority >= UNSIGNED // 2 and any(one.priority < UNSIGNED // 2 for one in this.running):
            acted()


@fault(
    "CTRL-2",
    "PRESS-1",
    stands_for="vllm#45388",
    cells=TIGHT,
    rare="only while two prompts that need more than half the pool wait in the queue",
)
def two_long_prompts_in_the_queue_wait_for_each_other(patch: Patch) -> None:
    """Each prompt in the queue that needs more than half the pool reserves its blocks. Two of them wait forever."""

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        inner = this.kv_cache_manager
        size, most = inner.block_pool.hash_block_size, (inner.block_pool.num_gpu_blocks - 1) // 2
        waiting = [request for request in this.waiting if -(-request.num_tokens // size) > most]
        inner.long_waiting = len(waiting)

    def unless(this: Any, need: int, _named: Any) -> bool:
        return bool(this.long_waiting < 2 or need <= (this.block_pool.num_gpu_blocks - 1) // 2)

    refuse_admission(patch, unless)


@fault("PRESS-2", stands_for="vllm#53130", cells=TIGHT, rare="only when more than sixteen requests wait")
def a_queue_of_more_than_sixteen_loses_its_oldest(patch: Patch) -> None:
    """The queue keeps sixteen requests. A further one takes the place of the oldest, which waits forever."""

    @before(patch, scheduler(), "add_request")
    def add(this: Any, request: Any) -> None:
        known = request.request_id in this.requests
        if this.kv_cache_manager.enable_caching and not known and len(this.waiting) >= QUEUE:
            this.waiting.pop_request()
            acted()


@fault(
    "PREEMPT-1",
    stands_for="vllm#52520, vllm#39734",
    cells=TIGHT,
    rare="only when a preempted request needs exactly as many blocks as are free",
)
def a_resumed_request_needs_a_block_to_spare(patch: Patch) -> None:
    """A preempted request is not resumed while it needs exactly the blocks that are free."""

    @around(patch, manager(), "allocate_slots")
    def allocate(original: Any, this: Any, request: Any, *rest: Any, **named: Any) -> Any:
        hit = named.get("new_computed_blocks")
        found = [block for block in hit.blocks[0] if block.ref_cnt] if hit is not None else []
        need = -(-request.num_tokens // this.block_pool.hash_block_size) - len(found)
        if (
            not this.enable_caching
            or request.status.name != "PREEMPTED"
            or need != this.block_pool.get_num_free_blocks()
        ):
            return original(this, request, *rest, **named)
        acted()
        return None


@fault(
    "PREEMPT-1",
    stands_for="a limit of retries that ends a request, vllm#52520",
    cells=("tight", "tightest"),
    rare="only for a request that is preempted four times",
)
def a_request_that_is_preempted_four_times_ends(patch: Patch) -> None:
    """The fourth preemption of a request ends it with an error."""

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        if this.kv_cache_manager.enable_caching and request.num_preemptions == TRIES:
            this.grammar_compile_error_reqs.add(request.request_id)  # vLLM's way to end a request from inside
            acted()
