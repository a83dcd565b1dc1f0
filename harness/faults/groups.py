"""Several groups of KV-cache blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, module

FAULTS, fault = collector("groups")


@fault("GROUP-1", stands_for="TRT PR#10875", cells=("groups-window",))
def half_a_window_is_kept(patch: Patch) -> None:
    """A hit needs only half the blocks that a window reads: the rest is whatever lies there."""

    def found(original: Any, *arguments: Any, kv_cache_spec: Any, **named: Any) -> Any:
        half = dataclasses.replace(kv_cache_spec, sliding_window=kv_cache_spec.sliding_window // 2)
        return original(*arguments, kv_cache_spec=half, **named)

    manager = module("v1.core.single_type_kv_cache_manager").SlidingWindowManager
    around(patch, manager, "find_longest_cache_hit", found)
