"""Requests that are preempted and come back."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, manager

FAULTS, fault = collector("preemption")


@fault("PREEMPT-1", stands_for="LMCache#1969", cells=("tight",))
def the_resumed_believe_a_block_was_loaded(patch: Patch) -> None:
    """A request that comes back after a preemption takes one block more for computed than it has: a new one, with
    what somebody else left in it (LMCache#1969)."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        more = count + held.block_pool.hash_block_size
        wrong = held.enable_caching and request.num_preemptions and more < request.num_tokens
        return blocks, more if wrong else count, boundary

    around(patch, manager(), "get_computed_blocks", found)
