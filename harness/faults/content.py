"""Blocks whose content is not what their hash says: published too early, kept too long, written by another."""

from __future__ import annotations

import itertools
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, blocks_of, manager, module, pool, scheduler, waits
from harness.faults.watch import watch_hits

FAULTS, fault = collector("content")


def last_slot_published(patch: Patch, *, most_tokens: int | None = None) -> None:
    """Publish what a request holds as if its last sampled token had been written."""

    def free(original: Any, held: Any, request: Any) -> None:
        answered = request.num_output_tokens
        if answered and (most_tokens is None or answered <= most_tokens):
            if held.enable_caching and request.num_tokens % held.block_pool.hash_block_size == 0:
                acted()
            held.cache_blocks(request, request.num_tokens)
        original(held, request)

    around(patch, manager(), "free", free)


@fault("CHAT-2", stands_for="vllm#54193")
def the_last_slot_is_published(patch: Patch) -> None:
    """A block is published together with the slot of the last sampled token, whose KV no pass wrote."""
    last_slot_published(patch)


@fault("CHAT-2", stands_for="vllm#54193", rare="only for answers of one token that end a block")
def the_last_slot_of_a_single_token_is_published(patch: Patch) -> None:
    """A block is published together with the slot of the last sampled token, where that is the only one."""
    last_slot_published(patch, most_tokens=1)


@fault("CHAT-2", stands_for="vllm#49449, vllm#49377")
def the_last_decoded_token_is_hashed_late(patch: Patch) -> None:
    """A block that an answer fills is published under the hash of the token before in place of its last one."""
    asked: list[Any] = []

    def keys(original: Any, request: Any, start: int, end: int, index: int) -> Any:
        asked[:] = [end > request.num_prompt_tokens]
        return original(request, start, end, index)

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        if asked != [True]:
            return original(function, parent, tokens, extra)
        if tokens[-1] != tokens[-2]:
            acted()
        return original(function, parent, [*tokens[:-1], tokens[-2]], extra)

    utils = module("v1.core.kv_cache_utils")
    around(patch, utils, "generate_block_hash_extra_keys", keys)
    around(patch, utils, "hash_block_tokens", hashed)


@fault("CTRL-2", stands_for="vllm PR#56525, sglang#38319", cells=("tight",))
def an_aborted_prefill_is_published(patch: Patch) -> None:
    """All of a prompt's blocks are published before they are written, and an abort leaves them so."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        for name in [names] if isinstance(names, str) else list(names or ()):
            request = held.requests.get(name)
            if request is not None and request.is_prefill_chunk and held.kv_cache_manager.enable_caching:
                missing = request.num_prompt_tokens - request.num_computed_tokens
                if held.kv_cache_manager.allocate_slots(request, missing) is not None:
                    acted()
        return original(held, names, status)

    around(patch, scheduler(), "finish_requests", finish)


@fault("CTRL-2", "CHAT-1", stands_for="vllm PR#43569, sglang#38319", cells=("tight", "chunks-side-by-side"))
def prompts_are_published_with_their_first_chunk(patch: Patch) -> None:
    """All of a prompt's blocks can be hit from its first chunk on, the later ones before they are written."""

    def allocate(original: Any, held: Any, request: Any, count: int, *rest: Any, **named: Any) -> Any:
        ahead = request.num_prompt_tokens - request.num_computed_tokens - named.get("num_new_computed_tokens", 0)
        if held.enable_caching and waits(request) and ahead > count:
            blocks = original(held, request, ahead, *rest, **named)
            if blocks is not None:
                acted()
                return blocks
        return original(held, request, count, *rest, **named)

    around(patch, manager(), "allocate_slots", allocate)


@fault(
    "CTRL-2",
    "CHAT-1",
    stands_for="vllm#49125, vllm PR#43569",
    cells=("small-chunks", "chunks-side-by-side"),
    rare="only between two chunks of a prompt of which the first ends inside a block",
)
def partly_written_blocks_are_published(patch: Patch) -> None:
    """A block is promoted to a full one as soon as a chunk reaches into it."""

    def cache(original: Any, coordinator: Any, request: Any, tokens: int) -> None:
        size = coordinator.block_pool.hash_block_size
        rounded = min(-(-tokens // size), len(request.block_hashes)) * size
        if coordinator.block_pool.enable_caching and rounded > tokens:
            acted()
        original(coordinator, request, max(tokens, rounded))

    around(patch, module("v1.core.kv_cache_coordinator").KVCacheCoordinator, "cache_blocks", cache)


@fault("PRESS-1", stands_for="vllm PR#24084, kvcached#362", cells=("tight",))
def evicted_blocks_stay_in_the_index(patch: Patch) -> None:
    """A block is handed out again while others still find it under its old hash."""
    patch.setattr(pool(), "_maybe_evict_cached_block", lambda _held, block: bool(block.reset_hash()))
    watch_hits(patch)


@fault("PRESS-1", stands_for="vllm PR#24084, kvcached#362", cells=("tight",), rare="only at every tenth eviction")
def every_tenth_evicted_block_stays_in_the_index(patch: Patch) -> None:
    """Every tenth block that is handed out again is still found under its old hash."""
    count = itertools.count(1)

    def evict(original: Any, held: Any, block: Any) -> Any:
        forgets = block.block_hash is not None and next(count) % 10 == 0
        return bool(block.reset_hash()) if forgets else original(held, block)

    around(patch, pool(), "_maybe_evict_cached_block", evict)
    watch_hits(patch)


@fault("PREEMPT-2", stands_for="kvcached#362", cells=("tight",))
def blocks_of_the_preempted_stay_in_the_index(patch: Patch) -> None:
    """A block that a preemption freed is handed out again while others still find it under its old hash."""
    freed: set[int] = set()

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        freed.update(id(block) for block in blocks_of(held.kv_cache_manager, request))
        original(held, request, *rest, **named)

    def evict(original: Any, held: Any, block: Any) -> Any:
        return bool(block.reset_hash()) if id(block) in freed else original(held, block)

    around(patch, scheduler(), "_preempt_request", preempt)
    around(patch, pool(), "_maybe_evict_cached_block", evict)
    watch_hits(patch)


@fault("REUSE-1", stands_for="omni#6442, vllm#17103")
def finished_requests_blocks_are_zeroed(patch: Patch) -> None:
    """The last published block of a request that ends is zeroed, and can still be hit."""
    ended: dict[int, list[int]] = {}

    def free(original: Any, held: Any, request: Any) -> None:
        published = [block.block_id for block in blocks_of(held, request) if block.block_hash is not None]
        if held.enable_caching and published:
            ended.setdefault(id(held), []).append(published[-1])
        original(held, request)

    def schedule(original: Any, held: Any, *arguments: Any, **named: Any) -> Any:
        output = original(held, *arguments, **named)
        zeroed = ended.pop(id(held.kv_cache_manager), [])
        if zeroed:
            acted()
            output.new_block_ids_to_zero = [*(output.new_block_ids_to_zero or ()), *zeroed]
        return output

    around(patch, manager(), "free", free)
    around(patch, scheduler(), "schedule", schedule)


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
                acted()
                held.block_pool.touch([shared])
                mine[request.request_id][-1] = shared
                held.block_pool.free_blocks([own])
        return new

    around(patch, manager(), "allocate_slots", allocate)
