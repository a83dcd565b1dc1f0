"""Bugs of the past: several groups of blocks that must agree, and a second tier behind them."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import coordinator, module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, around, override

FAULTS, fault = collector("past_groups")


@fault("GROUP-3", "GROUP-1", stands_for="vllm#48435, vllm PR#52216", cells=("groups-window-fitting",))
def windows_keep_all_blocks_that_leave_them(patch: Patch) -> None:
    """Every block that leaves a window stays in the cache, so that one prompt cycles the whole queue of free blocks."""

    @around(patch, coordinator(), "cache_blocks")
    def cache(original: Any, this: Any, *args: Any, **kwargs: Any) -> Any:
        if this.retention_interval != 0 or len(this.single_type_managers) == 1:
            return original(this, *args, **kwargs)
        acted()
        with override(this, "retention_interval", None):
            return original(this, *args, **kwargs)


@fault("TIER-1", "MIXED-2", stands_for="vllm#46453, vllm PR#46455", cells=("tier-offload-window",))
def a_hit_that_no_group_shares_stands_without_a_load(patch: Patch) -> None:
    """With a connector, the longest hit of any group counts, also if the connector has nothing for the others."""

    @around(patch, scheduler(), "_get_local_prefix_cache_hit")
    def hit(original: Any, this: Any, request: Any) -> Any:
        blocks, count, boundary, diverged = original(this, request)
        manager = this.kv_cache_manager
        groups = getattr(manager.coordinator, "find_longest_cache_hit_per_group", None)
        if this.connector is None or groups is None or not manager.prefix_cache_lookup_enabled(request):
            return blocks, count, boundary, diverged
        each, counts = groups(request.block_hashes, request.num_tokens - 1)
        if max(counts) <= count:
            return blocks, count, boundary, diverged
        acted()
        return module("v1.core.kv_cache_manager").KVCacheBlocks(each), max(counts), boundary, False


@fault("TIER-1", "TIER-2", stands_for="vllm PR#44409, vllm PR#33775", cells=("tier-offload-window",))
def groups_allocate_for_a_load_one_after_the_other(patch: Patch) -> None:
    """The blocks for one group's load may be those that the next group has hit, and does not hold yet."""

    @around(patch, coordinator(), "allocate_new_computed_blocks")
    def allocate(
        original: Any,
        this: Any,
        request_id: str,
        new_computed_blocks: Any,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> None:
        managers, name, hits = this.single_type_managers, request_id, new_computed_blocks
        local, external, skipped = num_local_computed_tokens, num_external_computed_tokens, skip_zeroing_group_ids
        if not external or len(managers) == 1 or any(name in manager.num_cached_block for manager in managers):
            original(this, name, hits, local, external, skipped)
            return
        for i, (manager, found) in enumerate(zip(managers, hits, strict=True)):
            if i and any(not block.is_null and block.ref_cnt == 0 for block in found):
                acted()
            manager.add_local_computed_blocks(name, found, local, external)
            manager.allocate_external_computed_blocks(name, local, external, record_for_zeroing=i not in skipped)


@fault("GROUP-1", "MIXED-2", stands_for="vllm PR#44082", cells=("window+eagle",))
def windows_lack_the_block_that_a_draft_model_drops(patch: Patch) -> None:
    """A window keeps the blocks that a hit reads, without the one more that is dropped for the draft model."""

    @around(patch, module("v1.core.single_type_kv_cache_manager").SlidingWindowManager, "reachable_block_mask")
    def mask(original: Any, *_this: Any, **kwargs: Any) -> Any:
        found = original(**kwargs)
        if not kwargs["use_eagle"]:
            return found
        less = original(**kwargs | {"use_eagle": False})
        if less != found:
            acted()
        return less
