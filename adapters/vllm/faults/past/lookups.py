"""Bugs of the past: what a second tier has found, and does not hold until it is loaded."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, around, override, state_of

FAULTS, fault = collector("past_lookups")
FOUND = "found_by_lookups"


def found_by(this: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Return the blocks that lookups have found, with their hashes, by request."""
    found: dict[str, list[tuple[Any, Any]]] = state_of(this, FOUND, dict)
    return found


@fault("TIER-1", "TIER-2", "TIER-5", stands_for="vllm#39702, vllm PR#42289", cells=("tier-simple",))
def the_lookup_of_a_tier_holds_nothing(patch: Patch) -> None:
    """What a lookup finds may be evicted before it is loaded. A second lookup must then find the same."""
    manager = module("v1.simple_kv_offload.manager").SimpleCPUOffloadScheduler

    @around(patch, manager, "get_num_new_matched_tokens")
    def match(original: Any, this: Any, request: Any, computed: int) -> Any:
        found = original(this, request, computed)
        pending = this._pending_cpu_hits.get(request.request_id)
        if pending is not None:
            blocks = [block for group in pending[0] for block in group if not block.is_null]
            found_by(this)[request.request_id] = [(block, block.block_hash) for block in blocks]
            this.cpu_block_pool.free_blocks(blocks)
        return found

    @around(patch, manager, "update_state_after_alloc")
    def allocated(original: Any, this: Any, request: Any, blocks: Any, tokens: int) -> None:
        found = found_by(this).pop(request.request_id, [])
        if any(block.block_hash != hashed for block, hashed in found):
            acted()
            raise AssertionError("the second lookup found less than the first")
        this.cpu_block_pool.touch([block for block, _ in found])
        original(this, request, blocks, tokens)

    @around(patch, manager, "_free_pending_cpu_hit")
    def freed(original: Any, this: Any, pending: Any) -> None:
        held = [block for group in pending[0] for block in group if not block.is_null and block.ref_cnt == 0]
        this.cpu_block_pool.touch(held)
        original(this, pending)


@fault("TIER-1", "MIXED-2", stands_for="vllm PR#57104", cells=("tier-offload+eagle", "tier-offload+drafts"))
def loads_reserve_no_blocks_for_drafts(patch: Patch) -> None:
    """A load is admitted with room for its prompt alone. Its drafts then need blocks that other loads hold."""

    @around(patch, scheduler(), "__init__")
    def start(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
        original(this, *args, **kwargs)
        if this._spec_decode_step_blocks and this.connector is not None:
            acted()
            this._spec_decode_step_blocks = 0

    @around(patch, scheduler(), "_request_remaining_blocks")
    def remaining(original: Any, this: Any, request: Any) -> Any:
        with override(this, "num_spec_tokens", 0):
            return original(this, request)
