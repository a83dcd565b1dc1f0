"""Requests whose clients hang up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, blocks_of, scheduler, waits

FAULTS, fault = collector("aborts")


def before_abort(patch: Patch, do: Callable[[Any, Any], bool | None]) -> None:
    """Have `do(scheduler, request)` come before each abort, in engines that cache; where it is true, nothing else."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        if names is None or status.name != "FINISHED_ABORTED" or not held.kv_cache_manager.enable_caching:
            return original(held, names, status)
        wanted = [names] if isinstance(names, str) else list(names)
        return original(
            held, [name for name in wanted if name not in held.requests or not do(held, held.requests[name])], status
        )

    around(patch, scheduler(), "finish_requests", finish)


@fault("CTRL-2", stands_for="vllm#44100", cells=("small-chunks", "tight"), rare="when a client hangs up in the queue")
def an_abort_in_the_queue_publishes_the_prompt(patch: Patch) -> None:
    """A request that is aborted before it ran leaves its prompt's hashes behind, on blocks that nobody wrote."""

    def publish(held: Any, request: Any) -> None:
        inner = held.kv_cache_manager
        block = inner.block_pool.hash_block_size
        tokens = min(request.num_tokens // block, inner.block_pool.get_num_free_blocks()) * block
        if waits(request) and tokens and inner.allocate_slots(request, tokens) is not None:
            acted()

    before_abort(patch, publish)


@fault(
    "CTRL-2",
    stands_for="vllm PR#56525, lucebox PR#371",
    cells=("tight",),
    rare="when a client hangs up while the second chunk of its prompt is computed",
)
def an_abort_in_the_second_chunk_publishes_a_block_too_many(patch: Patch) -> None:
    """A request that is aborted in its prompt's second chunk publishes the block behind what was computed, too."""

    def publish(held: Any, request: Any) -> None:
        inner, chunk = held.kv_cache_manager, held.max_num_scheduled_tokens
        block = inner.block_pool.hash_block_size
        second = request.is_prefill_chunk and chunk < request.num_computed_tokens <= 2 * chunk
        more = second and request.num_computed_tokens + block <= request.num_tokens
        if more and inner.allocate_slots(request, block) is not None:
            acted()

    before_abort(patch, publish)


@fault("CTRL-2", stands_for="vllm#42571, vllm#43382", cells=("tight",))
def an_abort_in_decode_frees_twice(patch: Patch) -> None:
    """The blocks of a request that is aborted while it decodes are given back twice."""

    def free(held: Any, request: Any) -> None:
        if not waits(request) and request.num_output_tokens:
            held.kv_cache_manager.block_pool.free_blocks(blocks_of(held.kv_cache_manager, request)[::-1])
            acted()

    before_abort(patch, free)


@fault(
    "CTRL-2",
    "PRESS-4",
    stands_for="vllm#42571, mini-sglang PR#142",
    cells=("tight",),
    rare="when an aborted request shares blocks with one that runs on",
)
def an_abort_frees_what_others_hold(patch: Patch) -> None:
    """An aborted request gives back the blocks that it shares as often as if it alone had them: whoever else uses them
    goes on with blocks that are free."""

    def free(held: Any, request: Any) -> None:
        shared = [block for block in blocks_of(held.kv_cache_manager, request) if block.ref_cnt > 1]
        if shared:
            held.kv_cache_manager.block_pool.free_blocks(shared[::-1])
            acted()

    before_abort(patch, free)


@fault("PRESS-4", stands_for="sglang PR#29471", cells=("tight",))
def an_aborted_request_runs_on(patch: Patch) -> None:
    """A request that is aborted while it decodes stays in the batch until its answer is complete."""

    def run_on(_held: Any, request: Any) -> bool:
        if waits(request) or not request.num_output_tokens:
            return False
        acted()
        return True

    before_abort(patch, run_on)


@fault("PRESS-4", stands_for="vllm#53130", cells=("tightest",), rare="after as many aborts as requests may run")
def aborts_use_up_the_slots(patch: Patch) -> None:
    """Each abort of a running request leaves room for one request less, until none is admitted any more."""

    def lose(held: Any, request: Any) -> None:
        if not waits(request):
            held.max_num_active_reqs = max(0, held.max_num_active_reqs - 1)

    def schedule(original: Any, held: Any, *rest: Any, **named: Any) -> Any:
        if held.waiting and held.max_num_active_reqs <= len(held.running) < held.max_num_running_reqs:
            acted()
        return original(held, *rest, **named)

    before_abort(patch, lose)
    around(patch, scheduler(), "schedule", schedule)
