"""Second KV tier: transfers that go wrong only in rare states of tier, request or engine."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, around, before, count_up, override, state_of
from coldproof.adapters.vllm.faults.tiers.keys_and_loads import CONNECTOR, OFFLOAD

FAULTS, fault = collector("rare_transfers")

SMALL_TIER = ("tier-offload-small",)


def host() -> Any:
    """Return the class that owns the chunks of host memory and the index of their keys."""
    return module("v1.kv_offload.cpu.manager").CPUOffloadingManager


@fault(
    "CTRL-3",
    stands_for="vllm#42694, vllm#54193",
    cells=OFFLOAD,
    rare="only for a reset of the tier while blocks are being stored in it",
)
def a_reset_of_the_tier_keeps_what_is_being_stored(patch: Patch) -> None:
    """A reset of the tier does not discard the stores that are in progress. Their blocks can be loaded afterwards."""

    @after(patch, host(), "prepare_store")
    def prepare(planned: Any, this: Any, _keys: Any, _context: Any) -> None:
        if planned is not None:
            state_of(this, "storing", set).update(planned.keys_to_store)

    @before(patch, host(), "complete_store")
    def complete(this: Any, keys: Any, *_: Any, **__: Any) -> None:
        state_of(this, "storing", set).difference_update(keys)

    @around(patch, host(), "reset_cache")
    def reset(original: Any, this: Any) -> None:
        storing = state_of(this, "storing", set[Any])
        chunks = {key: this._policy.get(key) for key in storing}
        kept = {key: chunk for key, chunk in chunks.items() if chunk is not None}
        original(this)
        storing.clear()
        if kept:
            acted()
            restore_chunks(this, kept)


def restore_chunks(this: Any, kept: dict[Any, Any]) -> None:
    """Put chunks back into an empty host tier, ready to be loaded."""
    taken = {chunk.chunk_id for chunk in kept.values()}
    this._num_allocated_chunks = max(taken) + 1
    this._free_list.extend(number for number in range(max(taken)) if number not in taken)
    for key, chunk in kept.items():
        chunk.ref_cnt = 0
        this._policy.insert(key, chunk)
    this._num_evictable_cache_chunks = len(kept)


@fault("TIER-1", stands_for="vllm#42571", cells=SMALL_TIER, rare="only at every eighth eviction from a full tier")
def every_eighth_evicted_chunk_is_freed_twice(patch: Patch) -> None:
    """Every eighth chunk that the full tier evicts is put on the free list twice, and two blocks are stored in it."""

    @after(patch, host(), "_free_chunk")
    def free(_result: Any, this: Any, chunk: Any) -> None:
        if count_up(this, "freed_chunks") % 8 == 0:
            this._free_list.append(chunk.chunk_id)
            acted()


@fault(
    "TIER-2",
    stands_for="LMCache#1969, LMCache#2912",
    cells=OFFLOAD,
    rare="only for a preempted request that finds fewer blocks in the pool than at first, and loads the others",
)
def a_second_load_begins_where_the_first_did(patch: Patch) -> None:
    """A resumed request loads only what follows the blocks that it found in the pool when it was admitted first."""

    @around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "update_state_after_alloc")
    def allocated(original: Any, this: Any, request: Any, blocks: Any, count: int) -> None:
        status = this._req_status[request.request_id]
        now = status.num_locally_computed_tokens
        first = state_of(this, "first_hits", dict[str, int]).setdefault(request.request_id, now)
        if not request.num_preemptions or not now < first < now + count:
            original(this, request, blocks, count)
            return
        acted()
        with override(status, "num_locally_computed_tokens", first):
            original(this, request, blocks, now + count - first)


@fault(
    "TIER-4",
    stands_for="vllm#49250, LMCache#3388",
    cells=("tier-failing",),
    rare="only when two requests of one step use a block whose load failed",
)
def a_failed_block_is_computed_again_for_its_first_user_only(patch: Patch) -> None:
    """When a load fails, the first request that uses the block computes it again. Others go on with what they read."""

    @around(patch, scheduler(), "_update_requests_with_invalid_blocks")
    def update(original: Any, this: Any, requests: Any, invalid: Any, *rest: Any, **named: Any) -> Any:
        marked: set[int] = set()
        first_users = []
        for request in requests:
            (blocks,) = this.kv_cache_manager.get_block_ids(request.request_id)
            failed = invalid.intersection(blocks)
            if failed and failed <= marked:
                acted()
                continue
            marked |= failed
            first_users.append(request)
        return original(this, first_users, invalid, *rest, **named)
