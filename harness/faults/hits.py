"""Hits that are lost, and hits that are miscounted."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, manager, module, pool

FAULTS, fault = collector("hits")


@fault("CHAT-2", stands_for="the multi-turn half of vllm#48435")
def what_decode_writes_is_not_published(patch: Patch) -> None:
    """Only the prompt's blocks are: an answer that comes back in the next turn is computed again."""

    def cache(original: Any, coordinator: Any, request: Any, tokens: int) -> None:
        original(coordinator, request, min(tokens, request.num_prompt_tokens))

    around(patch, module("v1.core.kv_cache_coordinator").KVCacheCoordinator, "cache_blocks", cache)


@fault("REUSE-1", stands_for="vllm#38182")
def the_last_block_is_dropped(patch: Patch) -> None:
    """Each lookup throws away the last block that matched, as is right for EAGLE only (vllm#38182)."""

    def found(original: Any, coordinator: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(coordinator, hashes, longest)
        return tuple(blocks[:-1] for blocks in groups), max(0, length - coordinator.block_size), rest

    coordinator = module("v1.core.kv_cache_coordinator").UnitaryKVCacheCoordinator
    around(patch, coordinator, "find_longest_cache_hit", found)


@fault("REUSE-2", stands_for="field report of 0 hits at 23 % use, vllm#32802")
def the_newest_blocks_go_first(patch: Patch) -> None:
    """New blocks come from the wrong end of the queue: others' cached ones are destroyed while most of the pool was
    never used (field report of 0 hits at 23 % use, vllm#32802)."""

    def new_blocks(original: Any, held: Any, count: int) -> Any:
        newest = held.free_block_queue.get_all_free_blocks()[-count:] if count else []
        for block in newest:
            held.free_block_queue.remove(block)
        held.free_block_queue.prepend_n(newest)
        return original(held, count)

    around(patch, pool(), "get_new_blocks", new_blocks)


@fault("REUSE-3", stands_for="vllm#43736")
def hits_are_counted_twice(patch: Patch) -> None:
    """Once at the lookup, once at the admission."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        held.record_prefix_cache_stats(request, count)
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)
