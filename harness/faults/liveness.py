"""Requests that wait for ever or run one at a time, prompts that are not refused, answers that never end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, scheduler, waits

FAULTS, fault = collector("liveness")


def refuse_admission(patch: Patch, unless: Callable[[Any, Any, Any], bool]) -> None:
    """Have a waiting request not be admitted where `unless(manager, request, named arguments)` is false."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        if held.enable_caching and waits(request) and not unless(held, request, named):
            acted()
            return None
        return original(held, request, *rest, **named)

    around(patch, manager(), "allocate_slots", allocate)


def cold_blocks(held: Any, request: Any) -> int:
    """As many blocks as all tokens of a request take."""
    return int(-(-request.num_tokens // held.block_pool.hash_block_size))


@fault("PRESS-2", stands_for="vLLM's V0 engine, field report", cells=("tight",))
def admission_asks_for_a_cold_prompts_blocks(patch: Patch) -> None:
    """As many blocks have to be free as if nothing of the prompt were cached."""
    refuse_admission(
        patch, lambda held, request, _named: cold_blocks(held, request) <= held.block_pool.get_num_free_blocks()
    )


@fault("PRESS-2", stands_for="vLLM's V0 engine, field report", cells=("tight",))
def cached_blocks_do_not_count_as_free(patch: Patch) -> None:
    """Cached blocks that nobody uses do not count as free: once the pool is full nothing is answered ever again."""

    def room(held: Any, request: Any, _named: Any) -> bool:
        free = held.block_pool.free_block_queue.get_all_free_blocks()
        return cold_blocks(held, request) <= sum(block.block_hash is None for block in free)

    refuse_admission(patch, room)


@fault("PRESS-2", stands_for="vllm PR#11565", cells=("tight",))
def requests_run_one_at_a_time(patch: Patch) -> None:
    """A waiting request is admitted when nobody else runs, whatever room there is."""
    refuse_admission(patch, lambda _held, _request, named: not named.get("has_scheduled_reqs"))


@fault("PRESS-2", stands_for="vllm PR#11565", cells=("tight",), rare="when a request hits what somebody still uses")
def who_shares_with_the_running_has_to_wait(patch: Patch) -> None:
    """A waiting request whose prefix is in use is admitted when its users are done."""

    def apart(_held: Any, _request: Any, named: Any) -> bool:
        hit = named.get("new_computed_blocks")
        return hit is None or not any(block.ref_cnt for group in hit.blocks for block in group)

    refuse_admission(patch, apart)


@fault("PRESS-2", stands_for="vllm PR#11565", cells=("tight",))
def one_request_runs_beside_another(patch: Patch) -> None:
    """No more than two requests run at a time, whatever room there is."""

    def schedule(original: Any, held: Any, *rest: Any, **named: Any) -> Any:
        most = held.max_num_active_reqs
        if held.kv_cache_manager.enable_caching:
            held.max_num_active_reqs = min(2, most)
        try:
            return original(held, *rest, **named)
        finally:
            held.max_num_active_reqs = most
            if held.kv_cache_manager.enable_caching and held.waiting and len(held.running) == 2 < most:
                acted()

    around(patch, scheduler(), "schedule", schedule)


@fault(
    "PRESS-4", stands_for="vllm#52520, vllm#39734", cells=("tight",), rare="when a prompt needs every block of the pool"
)
def who_needs_the_whole_pool_is_never_admitted(patch: Patch) -> None:
    """A prompt that takes all blocks of the pool is accepted and waits for one block more, with all behind it."""
    refuse_admission(
        patch, lambda held, request, _named: cold_blocks(held, request) < held.block_pool.num_gpu_blocks - 1
    )


@fault("PRESS-3", stands_for="vllm#35541, vllm#39734", cells=("tight",))
def nobody_checks_that_the_pool_holds_a_prompt(patch: Patch) -> None:
    """An engine starts whose pool is smaller than its longest prompt; such a prompt waits for ever."""

    def check(original: Any, *sizes: Any, **named: Any) -> None:
        try:
            original(*sizes, **named)
        except ValueError:
            acted()

    around(patch, module("v1.core.kv_cache_utils"), "_check_enough_kv_cache_memory", check)


@fault("PRESS-3", stands_for="llama.cpp#16983", cells=("tight",))
def long_prompts_are_cut(patch: Patch) -> None:
    """A prompt that is too long is cut and answered, instead of refused."""

    def fit(_original: Any, limits: Any, _tokenizer: Any, tokens: Any) -> Any:
        most = limits.max_total_tokens - limits.max_output_tokens
        if len(tokens) > most:
            acted()
        return tokens[:most]

    around(patch, module("renderers.params").TokenizeParams, "_token_len_check", fit)


@fault("PRESS-2", stands_for="vllm#11562", cells=("tight",))
def a_full_pool_stops_everything(patch: Patch) -> None:
    """A step for which no block is free schedules nothing, not even those whose last block has room."""

    def schedule(original: Any, held: Any, *rest: Any, **named: Any) -> Any:
        inner, before = held.kv_cache_manager, held.pause_state
        if inner.enable_caching and held.running and not inner.block_pool.get_num_free_blocks():
            held._pause_state = type(before).PAUSED_ALL
            acted()
        try:
            return original(held, *rest, **named)
        finally:
            held._pause_state = before

    around(patch, scheduler(), "schedule", schedule)


@fault("REUSE-1", stands_for="vllm PR#18411", rare="when a prompt ends with a block and was asked before")
def a_whole_hit_leaves_nothing_to_compute(patch: Patch) -> None:
    """A prompt that is cached to its last token is taken for computed, and the step has nothing to do for it."""

    def found(original: Any, coordinator: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(coordinator, hashes, longest + 1)
        if length > longest:
            acted()
        return groups, length, rest

    around(patch, module("v1.core.kv_cache_coordinator").UnitaryKVCacheCoordinator, "find_longest_cache_hit", found)


@fault(
    "REUSE-1",
    stands_for="vllm PR#18411, vLLM's V0 engine, field report",
    rare="when a prompt ends with a block and was asked before",
)
def the_end_of_a_whole_hit_is_not_told(patch: Patch) -> None:
    """A request whose prompt was cached but for its last block, and ends with a block, is answered and never ends."""
    whole: set[str] = set()

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        if count and count + held.block_pool.hash_block_size == request.num_prompt_tokens:
            whole.add(request.request_id)
        return blocks, count, boundary

    def update(original: Any, held: Any, *rest: Any, **named: Any) -> Any:
        made = original(held, *rest, **named)
        for outputs in made.values():
            for output in outputs.outputs:
                if output.finish_reason is not None and output.request_id in whole:
                    output.finish_reason = None
                    acted()
        return made

    around(patch, manager(), "get_computed_blocks", found)
    around(patch, scheduler(), "update_from_output", update)
