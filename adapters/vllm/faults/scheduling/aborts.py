"""Requests whose clients disconnect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, is_waiting, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, around, before

FAULTS, fault = collector("aborts")


def before_abort(patch: Patch, do: Callable[[Any, Any], bool | None]) -> None:
    """Call `do(scheduler, request)` before each abort, in engines with caching. If it returns True, the abort is
    skipped.
    """

    @around(patch, scheduler(), "finish_requests")
    def finish(original: Any, this: Any, names: Any, status: Any) -> Any:
        if names is None or status.name != "FINISHED_ABORTED" or not this.kv_cache_manager.enable_caching:
            return original(this, names, status)
        wanted = [names] if isinstance(names, str) else list(names)
        return original(
            this, [name for name in wanted if name not in this.requests or not do(this, this.requests[name])], status
        )


@fault(
    "CTRL-2",
    stands_for="vllm#44100",
    cells=("small-chunks", "tight"),
    rare="only when a client disconnects while its request is queued",
)
def an_abort_in_the_queue_publishes_the_prompt(patch: Patch) -> None:
    """A request that is aborted before it ran publishes its prompt's hashes for blocks that were never written."""

    def publish(this: Any, request: Any) -> None:
        inner = this.kv_cache_manager
        block = inner.block_pool.hash_block_size
        tokens = min(request.num_tokens // block, inner.block_pool.get_num_free_blocks()) * block
        if is_waiting(request) and tokens and inner.allocate_slots(request, tokens) is not None:
            acted()

    before_abort(patch, publish)


@fault(
    "CTRL-2",
    stands_for="vllm PR#56525, lucebox PR#371",
    cells=TIGHT,
    rare="only when a client disconnects while the second chunk of its prompt is computed",
)
def an_abort_in_the_second_chunk_publishes_a_block_too_many(patch: Patch) -> None:
    """A request that is aborted in its prompt's second chunk also publishes the block after what was computed."""

    def publish(this: Any, request: Any) -> None:
        inner, chunk = this.kv_cache_manager, this.max_num_scheduled_tokens
        block = inner.block_pool.hash_block_size
        second = request.is_prefill_chunk and chunk < request.num_computed_tokens <= 2 * chunk
        more = second and request.num_computed_tokens + block <= request.num_tokens
        if more and inner.allocate_slots(request, block) is not None:
            acted()

    before_abort(patch, publish)


@fault("CTRL-2", stands_for="vllm#42571, vllm#43382", cells=TIGHT)
def an_abort_in_decode_frees_twice(patch: Patch) -> None:
    """The blocks of a request that is aborted in decode are freed twice."""

    def free(this: Any, request: Any) -> None:
        if not is_waiting(request) and request.num_output_tokens:
            this.kv_cache_manager.block_pool.free_blocks(blocks_of(this.kv_cache_manager, request)[::-1])
            acted()

    before_abort(patch, free)


@fault(
    "CTRL-2",
    "PRESS-4",
    stands_for="vllm#42571, mini-sglang PR#142",
    cells=TIGHT,
    rare="only when an aborted request shares blocks with a request that continues",
)
def an_abort_frees_what_others_hold(patch: Patch) -> None:
    """An aborted request frees its shared blocks completely, so that other requests continue with free blocks."""

    def free(this: Any, request: Any) -> None:
        shared = [block for block in blocks_of(this.kv_cache_manager, request) if block.ref_cnt > 1]
        if shared:
            this.kv_cache_manager.block_pool.free_blocks(shared[::-1])
            acted()

    before_abort(patch, free)


@fault("PRESS-4", stands_for="sglang PR#29471", cells=TIGHT)
def an_aborted_request_runs_on(patch: Patch) -> None:
    """A request that is aborted in decode stays in the batch until its answer is complete."""

    def run_on(_held: Any, request: Any) -> bool:
        if is_waiting(request) or not request.num_output_tokens:
            return False
        acted()
        return True

    before_abort(patch, run_on)


@fault(
    "PRESS-4",
    stands_for="vllm#53130",
    cells=("tightest",),
    rare="only after as many aborts as requests can run concurrently",
)
def aborts_use_up_the_slots(patch: Patch) -> None:
    """Each abort of a running request reduces the number of requests that can run by one, until none is admitted."""

    def lose(this: Any, request: Any) -> None:
        if not is_waiting(request):
            this.max_num_active_reqs = max(0, this.max_num_active_reqs - 1)

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        if this.waiting and this.max_num_active_reqs <= len(this.running) < this.max_num_running_reqs:
            acted()

    before_abort(patch, lose)
