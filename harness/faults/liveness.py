"""Requests that wait for ever or run one at a time, prompts that are not refused, blocks that never come back."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, manager, module, scheduler, waits

FAULTS, fault = collector("liveness")


@fault("PRESS-2", stands_for="vLLM's V0 engine, field report", cells=("tight",))
def admission_asks_for_a_cold_prompts_blocks(patch: Patch) -> None:
    """As many blocks have to be free as if nothing of the prompt were cached (vLLM's V0 engine, field report)."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        if held.enable_caching and waits(request):
            needed = -(-request.num_tokens // held.block_pool.hash_block_size)
            if needed > held.block_pool.get_num_free_blocks():
                return None
        return original(held, request, *rest, **named)

    around(patch, manager(), "allocate_slots", allocate)


@fault("PRESS-2", stands_for="vLLM's V0 engine, field report", cells=("tight",))
def cached_blocks_do_not_count_as_free(patch: Patch) -> None:
    """The same, and nobody evicts on purpose: the first request is answered, then nothing ever again (the same
    report)."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        if held.enable_caching and waits(request):
            needed = -(-request.num_tokens // held.block_pool.hash_block_size)
            free = held.block_pool.free_block_queue.get_all_free_blocks()
            if needed > sum(block.block_hash is None for block in free):
                return None
        return original(held, request, *rest, **named)

    around(patch, manager(), "allocate_slots", allocate)


@fault("PRESS-3", stands_for="vllm#35541, vllm#39734", cells=("tight",))
def nobody_checks_that_the_pool_holds_a_prompt(patch: Patch) -> None:
    """An engine starts whose pool is smaller than its longest prompt; such a prompt waits for ever (vllm#35541,
    vllm#39734)."""
    patch.setattr(module("v1.core.kv_cache_utils"), "_check_enough_kv_cache_memory", lambda *_: None)


@fault("PRESS-3", stands_for="llama.cpp#16983", cells=("tight",))
def long_prompts_are_cut(patch: Patch) -> None:
    """A prompt that is too long is cut and answered, instead of refused."""

    def fit(_original: Any, limits: Any, _tokenizer: Any, tokens: Any) -> Any:
        return tokens[: limits.max_total_tokens - limits.max_output_tokens]

    around(patch, module("renderers.params").TokenizeParams, "_token_len_check", fit)


@fault("PRESS-4", stands_for="vllm#46283", cells=("tight",))
def aborted_requests_keep_their_blocks(patch: Patch) -> None:
    """What an aborted request held is never given back (vllm#46283)."""

    def free(original: Any, held: Any, request: Any, delay_free_blocks: bool = False) -> Any:
        leaks = held.kv_cache_manager.enable_caching and request.status.name == "FINISHED_ABORTED"
        return original(held, request, delay_free_blocks or leaks)

    around(patch, scheduler(), "_free_request", free)
