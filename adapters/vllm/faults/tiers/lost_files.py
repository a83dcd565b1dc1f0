"""Second KV tier: files that are gone, or cut, while the engine runs."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module
from coldproof.adapters.vllm.faults.patching import acted, around

FAULTS, fault = collector("lost_files")

FILES = ("tier-files-lost",)


@fault("TIER-8", stands_for="vllm#49176", cells=FILES)
def a_lost_file_stays_found(patch: Patch) -> None:
    """A lookup that has found a file is not corrected when the file cannot be read: it is read again, for ever."""

    @around(patch, module("v1.kv_offload.tiering.async_lookup").AsyncLookupManager, "mark_miss")
    def mark_miss(_original: Any, _this: Any, keys: Any) -> None:
        if keys:
            acted()


@fault("TIER-8", stands_for="LMCache#3388", cells=FILES)
def a_file_that_cannot_be_read_counts_as_read(patch: Patch) -> None:
    """A read that failed is reported as done, so that what stood in its place in host memory is loaded."""

    @around(patch, module("v1.kv_offload.tiering.manager").TieringOffloadingManager, "_complete_promotion")
    def complete(original: Any, this: Any, job: Any, result: Any) -> None:
        if not result.success:
            acted()
            result.success = True
        original(this, job, result)


@fault("TIER-8", stands_for="LMCache#4991", cells=FILES)
def a_failed_read_keeps_its_place(patch: Patch) -> None:
    """Where a read fails, the blocks that it should have filled stay reserved, and are never ready."""

    @around(patch, module("v1.kv_offload.tiering.manager").TieringOffloadingManager, "_complete_promotion")
    def complete(original: Any, this: Any, job: Any, result: Any) -> None:
        if result.success:
            original(this, job, result)
        else:
            acted()
