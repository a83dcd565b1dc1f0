"""Blocks whose content does not match their hash: published too early, kept too long, written by another request."""

from __future__ import annotations

import itertools
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import (
    blocks_of,
    coordinator,
    find_requests,
    is_waiting,
    manager,
    module,
    pool,
    scheduler,
)
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before

FAULTS, fault = collector("content")


def publish_last_slot(patch: Patch, *, most_tokens: int | None = None) -> None:
    """Publish the blocks of a request as if the KV of its last sampled token had been written."""

    @before(patch, manager(), "free")
    def free(this: Any, request: Any) -> None:
        answered = request.num_output_tokens
        if answered and (most_tokens is None or answered <= most_tokens):
            if this.enable_caching and request.num_tokens % this.block_pool.hash_block_size == 0:
                acted()
            this.cache_blocks(request, request.num_tokens)


@fault("CHAT-2", stands_for="vllm#54193")
def the_last_slot_is_published(patch: Patch) -> None:
    """A block is published including the slot of the last sampled token, whose KV no pass wrote."""
    publish_last_slot(patch)


@fault("CHAT-2", stands_for="vllm#54193", rare="only for answers of one token at the end of a block")
def the_last_slot_of_a_single_token_is_published(patch: Patch) -> None:
    """A block is published including the slot of the last sampled token, if the answer has only that token."""
    publish_last_slot(patch, most_tokens=1)


@fault("CHAT-2", stands_for="vllm#49449, vllm#49377")
def the_last_decoded_token_is_hashed_late(patch: Patch) -> None:
    """A block that decode fills is hashed with its second-to-last token in place of its last one."""
    utils = module("v1.core.kv_cache_utils")
    in_answer: list[Any] = []

    @before(patch, utils, "generate_block_hash_extra_keys")
    def keys(request: Any, _start: int, end: int, _index: int) -> None:
        in_answer[:] = [end > request.num_prompt_tokens]

    @around(patch, utils, "hash_block_tokens")
    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        if in_answer != [True]:
            return original(function, parent, tokens, extra)
        if tokens[-1] != tokens[-2]:
            acted()
        return original(function, parent, [*tokens[:-1], tokens[-2]], extra)


@fault("CTRL-2", stands_for="vllm PR#56525, sglang#38319", cells=TIGHT)
def an_aborted_prefill_is_published(patch: Patch) -> None:
    """When a request is aborted in prefill, all blocks of its prompt are published, even if never written."""

    @before(patch, scheduler(), "finish_requests")
    def finish(this: Any, names: Any, _status: Any) -> None:
        for request in find_requests(this, names):
            if request.is_prefill_chunk and this.kv_cache_manager.enable_caching:
                missing = request.num_prompt_tokens - request.num_computed_tokens
                if this.kv_cache_manager.allocate_slots(request, missing) is not None:
                    acted()


@fault("CTRL-2", "CHAT-1", stands_for="vllm PR#43569, sglang#38319", cells=("tight", "chunks-side-by-side"))
def prompts_are_published_with_their_first_chunk(patch: Patch) -> None:
    """All blocks of a prompt can be hit from its first chunk on, the later ones before they are written."""

    @around(patch, manager(), "allocate_slots")
    def allocate(original: Any, this: Any, request: Any, count: int, *rest: Any, **kwargs: Any) -> Any:
        ahead = request.num_prompt_tokens - request.num_computed_tokens - kwargs.get("num_new_computed_tokens", 0)
        if this.enable_caching and is_waiting(request) and ahead > count:
            blocks = original(this, request, ahead, *rest, **kwargs)
            if blocks is not None:
                acted()
                return blocks
        return original(this, request, count, *rest, **kwargs)


@fault(
    "CTRL-2",
    "CHAT-1",
    stands_for="vllm#49125, vllm PR#43569",
    cells=("small-chunks", "chunks-side-by-side"),
    rare="only between two chunks of a prompt, if the first ends inside a block",
)
def partly_written_blocks_are_published(patch: Patch) -> None:
    """A block is published as soon as a chunk writes its first slot."""

    @around(patch, coordinator(), "cache_blocks")
    def cache(original: Any, this: Any, request: Any, tokens: int) -> None:
        size = this.block_pool.hash_block_size
        rounded = min(-(-tokens // size), len(request.block_hashes)) * size
        if this.block_pool.enable_caching and rounded > tokens:
            acted()
        original(this, request, max(tokens, rounded))


@fault("PRESS-1", stands_for="vllm PR#24084, kvcached#362", cells=TIGHT)
def evicted_blocks_stay_in_the_index(patch: Patch) -> None:
    """A block is allocated again while lookups still find it by its old hash."""
    patch.setattr(pool(), "_maybe_evict_cached_block", lambda _held, block: bool(block.reset_hash()))
    count_wrong_hits(patch)


@fault("PRESS-1", stands_for="vllm PR#24084, kvcached#362", cells=TIGHT, rare="only at every tenth eviction")
def every_tenth_evicted_block_stays_in_the_index(patch: Patch) -> None:
    """Every tenth block that is allocated again is still found by its old hash."""
    count = itertools.count(1)

    @around(patch, pool(), "_maybe_evict_cached_block")
    def evict(original: Any, this: Any, block: Any) -> Any:
        forgets = block.block_hash is not None and next(count) % 10 == 0
        return bool(block.reset_hash()) if forgets else original(this, block)

    count_wrong_hits(patch)


@fault("PREEMPT-2", stands_for="kvcached#362", cells=TIGHT)
def blocks_of_preempted_requests_stay_in_the_index(patch: Patch) -> None:
    """A block that a preemption freed is allocated again while lookups still find it by its old hash."""
    freed: set[int] = set()

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        freed.update(id(block) for block in blocks_of(this.kv_cache_manager, request))

    @around(patch, pool(), "_maybe_evict_cached_block")
    def evict(original: Any, this: Any, block: Any) -> Any:
        return bool(block.reset_hash()) if id(block) in freed else original(this, block)

    count_wrong_hits(patch)


@fault("REUSE-1", stands_for="omni#6442, vllm#17103")
def finished_requests_blocks_are_zeroed(patch: Patch) -> None:
    """The last published block of a finished request is zeroed and can still be hit."""
    ended: dict[int, list[int]] = {}

    @before(patch, manager(), "free")
    def free(this: Any, request: Any) -> None:
        published = [block.block_id for block in blocks_of(this, request) if block.block_hash is not None]
        if this.enable_caching and published:
            ended.setdefault(id(this), []).append(published[-1])

    @after(patch, scheduler(), "schedule")
    def schedule(output: Any, this: Any, *_: Any, **__: Any) -> None:
        zeroed = ended.pop(id(this.kv_cache_manager), [])
        if zeroed:
            acted()
            output.new_block_ids_to_zero = [*(output.new_block_ids_to_zero or ()), *zeroed]


@fault("SURFACE-1", stands_for="tenstorrent/tt-xla PR#4190")
def answers_write_into_one_block(patch: Patch) -> None:
    """The second answer to a prompt continues in the first answer's last block instead of in a copy."""

    @after(patch, manager(), "allocate_slots")
    def allocate(_new: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        number, _, parent = request.request_id.partition("_")
        mine = this.coordinator.single_type_managers[0].req_to_blocks
        theirs = mine.get(f"0_{parent}")
        if this.enable_caching and number == "1" and theirs and len(theirs) == len(mine[request.request_id]):
            own, shared = mine[request.request_id][-1], theirs[-1]
            if own is not shared and request.num_computed_tokens < request.num_prompt_tokens:
                acted()
                this.block_pool.touch([shared])
                mine[request.request_id][-1] = shared
                this.block_pool.free_blocks([own])
