"""Blocks whose content is not what their hash says: published too early, kept too long, written by another."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, blocks_of, manager, pool, scheduler

FAULTS, fault = collector("content")


@fault("CHAT-2", stands_for="vllm#54193")
def the_last_slot_is_published(patch: Patch) -> None:
    """A block is published together with the slot of the last sampled token, whose KV no pass wrote (vllm#54193)."""

    def free(original: Any, held: Any, request: Any) -> None:
        if request.num_output_tokens:
            held.cache_blocks(request, request.num_tokens)
        original(held, request)

    around(patch, manager(), "free", free)


@fault("CTRL-2", stands_for="vllm PR#56525, sglang#38319")
def an_aborted_prefill_is_published(patch: Patch) -> None:
    """All of a prompt's blocks are published before they are written, and an abort leaves them so (vllm PR#56525,
    sglang#38319)."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        for name in [names] if isinstance(names, str) else list(names or ()):
            request = held.requests.get(name)
            if request is not None and request.is_prefill_chunk and held.kv_cache_manager.enable_caching:
                missing = request.num_prompt_tokens - request.num_computed_tokens
                held.kv_cache_manager.allocate_slots(request, missing)
        return original(held, names, status)

    around(patch, scheduler(), "finish_requests", finish)


@fault("PRESS-1", stands_for="vllm PR#24084, kvcached#362", cells=("tight",))
def evicted_blocks_stay_in_the_index(patch: Patch) -> None:
    """A block is handed out again while others still find it under its old hash (vllm PR#24084, kvcached#362)."""
    patch.setattr(pool(), "_maybe_evict_cached_block", lambda _held, block: bool(block.reset_hash()))


@fault("PREEMPT-2", stands_for="kvcached#362", cells=("tight",))
def blocks_of_the_preempted_stay_in_the_index(patch: Patch) -> None:
    """The same for blocks that a preemption freed, and for no others (kvcached#362)."""
    freed: set[int] = set()

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        freed.update(id(block) for block in blocks_of(held.kv_cache_manager, request))
        original(held, request, *rest, **named)

    def evict(original: Any, held: Any, block: Any) -> Any:
        return bool(block.reset_hash()) if id(block) in freed else original(held, block)

    around(patch, scheduler(), "_preempt_request", preempt)
    around(patch, pool(), "_maybe_evict_cached_block", evict)


@fault("SURFACE-1", stands_for="tenstorrent/tt-xla PR#4190")
def answers_write_into_one_block(patch: Patch) -> None:
    """The second answer to a prompt goes on in the first one's last block instead of a copy."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        new = original(held, request, *rest, **named)
        number, _, parent = request.request_id.partition("_")
        mine = held.coordinator.single_type_managers[0].req_to_blocks
        theirs = mine.get(f"0_{parent}")
        if held.enable_caching and number == "1" and theirs and len(theirs) == len(mine[request.request_id]):
            own, shared = mine[request.request_id][-1], theirs[-1]
            if own is not shared and request.num_computed_tokens < request.num_prompt_tokens:
                held.block_pool.touch([shared])
                mine[request.request_id][-1] = shared
                held.block_pool.free_blocks([own])
        return new

    around(patch, manager(), "allocate_slots", allocate)
