"""Requests that wait forever or run one at a time, prompts that are not refused, answers that never end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import coordinator, is_waiting, manager, module, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, after_lookup, around, override

FAULTS, fault = collector("liveness")


def refuse_admission(patch: Patch, unless: Callable[[Any, int, Any], bool]) -> None:
    """Do not admit a waiting request where `unless(manager, blocks that its tokens need, kwargs)` is false."""

    @around(patch, manager(), "allocate_slots")
    def allocate(original: Any, this: Any, request: Any, *rest: Any, **kwargs: Any) -> Any:
        need = -(-request.num_tokens // this.block_pool.hash_block_size)
        if this.enable_caching and is_waiting(request) and not unless(this, need, kwargs):
            acted()
            return None
        return original(this, request, *rest, **kwargs)


@fault("PRESS-2", stands_for="vLLM's V0 engine, field report", cells=TIGHT)
def admission_counts_hits_as_new_blocks(patch: Patch) -> None:
    """A request is admitted only if as many blocks are free as its prompt needs without the cache."""
    refuse_admission(patch, lambda this, need, _named: need <= this.block_pool.get_num_free_blocks())


@fault("PRESS-2", stands_for="vLLM's V0 engine, field report", cells=TIGHT)
def cached_blocks_do_not_count_as_free(patch: Patch) -> None:
    """Cached blocks that no request uses do not count as free. Once the pool is full, no request is admitted."""

    def room(this: Any, need: int, _named: Any) -> bool:
        free = this.block_pool.free_block_queue.get_all_free_blocks()
        return need <= sum(block.block_hash is None for block in free)

    refuse_admission(patch, room)


@fault("PRESS-2", stands_for="vllm PR#11565", cells=TIGHT)
def requests_run_one_at_a_time(patch: Patch) -> None:
    """A waiting request is admitted only when no other request runs, however many blocks are free."""
    refuse_admission(patch, lambda _held, _need, kwargs: not kwargs.get("has_scheduled_reqs"))


@fault("PRESS-2", stands_for="vllm PR#11565", cells=TIGHT, rare="only when a request hits blocks in use")
def a_request_with_a_running_prefix_waits(patch: Patch) -> None:
    """A waiting request whose prefix is in use is admitted only after the requests that use it have ended."""

    def apart(_held: Any, _need: int, kwargs: Any) -> bool:
        hit = kwargs.get("new_computed_blocks")
        return hit is None or not any(block.ref_cnt for group in hit.blocks for block in group)

    refuse_admission(patch, apart)


@fault("PRESS-2", stands_for="vllm PR#11565", cells=TIGHT)
def one_request_runs_beside_another(patch: Patch) -> None:
    """At most two requests run concurrently, however many blocks are free."""

    @around(patch, scheduler(), "schedule")
    def schedule(original: Any, this: Any, *rest: Any, **kwargs: Any) -> Any:
        if not this.kv_cache_manager.enable_caching:
            return original(this, *rest, **kwargs)
        with override(this, "max_num_active_reqs", min(2, this.max_num_active_reqs)):
            output = original(this, *rest, **kwargs)
        if this.waiting and len(this.running) == 2 < this.max_num_active_reqs:
            acted()
        return output


@fault(
    "PRESS-4", stands_for="vllm#52520, vllm#39734", cells=TIGHT, rare="only when a prompt needs every block of the pool"
)
def a_prompt_that_fills_the_pool_is_never_admitted(patch: Patch) -> None:
    """A prompt that needs all blocks of the pool is accepted and waits forever, with all requests behind it."""
    refuse_admission(patch, lambda this, need, _named: need < this.block_pool.num_gpu_blocks - 1)


@fault("PRESS-3", stands_for="vllm#35541, vllm#39734", cells=TIGHT)
def a_prompt_longer_than_the_pool_is_admitted(patch: Patch) -> None:
    """An engine starts although its pool is smaller than its longest prompt. Such a prompt waits forever."""

    @around(patch, module("v1.core.kv_cache_utils"), "_check_enough_kv_cache_memory")
    def check(original: Any, *sizes: Any, **kwargs: Any) -> None:
        try:
            original(*sizes, **kwargs)
        except ValueError:
            acted()


@fault("PRESS-3", stands_for="llama.cpp#16983", cells=TIGHT)
def long_prompts_are_cut(patch: Patch) -> None:
    """A prompt that is too long is truncated and answered instead of refused."""

    @around(patch, module("renderers.params").TokenizeParams, "_token_len_check")
    def fit(_original: Any, limits: Any, _tokenizer: Any, tokens: Any) -> Any:
        most = limits.max_total_tokens - limits.max_output_tokens
        if len(tokens) > most:
            acted()
        return tokens[:most]


@fault("PRESS-2", stands_for="vllm#11562", cells=TIGHT)
def a_full_pool_stops_everything(patch: Patch) -> None:
    """A step without free blocks schedules nothing, not even requests whose last block has room."""

    @around(patch, scheduler(), "schedule")
    def schedule(original: Any, this: Any, *rest: Any, **kwargs: Any) -> Any:
        inner = this.kv_cache_manager
        if not inner.enable_caching or not this.running or inner.block_pool.get_num_free_blocks():
            return original(this, *rest, **kwargs)
        acted()
        with override(this, "_pause_state", type(this.pause_state).PAUSED_ALL):
            return original(this, *rest, **kwargs)


@fault("REUSE-1", stands_for="vllm PR#18411", rare="only when a prompt that ends at the end of a block is sent again")
def a_whole_hit_leaves_nothing_to_compute(patch: Patch) -> None:
    """A prompt that is cached to its last token counts as computed, so that the step has nothing to compute for it."""

    @around(patch, coordinator("Unitary"), "find_longest_cache_hit")
    def found(original: Any, this: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(this, hashes, longest + 1)
        if length > longest:
            acted()
        return groups, length, rest


@fault(
    "REUSE-1",
    stands_for="vllm PR#18411, vLLM's V0 engine, field report",
    rare="only when a prompt that ends at the end of a block is sent again",
)
def the_end_of_a_whole_hit_is_not_reported(patch: Patch) -> None:
    """A request that hits all but the last block of a prompt that ends at a block's end is answered but never reported
    as finished.
    """
    whole: set[str] = set()

    @after_lookup(patch)
    def found(this: Any, request: Any, _blocks: Any, count: int) -> None:
        if count and count + this.block_pool.hash_block_size == request.num_prompt_tokens:
            whole.add(request.request_id)

    @after(patch, scheduler(), "update_from_output")
    def update(made: Any, *_: Any, **__: Any) -> None:
        for outputs in made.values():
            for output in outputs.outputs:
                if output.finish_reason is not None and output.request_id in whole:
                    output.finish_reason = None
                    acted()
