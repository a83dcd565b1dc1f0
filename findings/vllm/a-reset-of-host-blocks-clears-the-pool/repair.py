"""Publish that the host's blocks are gone as removals, which name their medium.

The event that all blocks are cleared names none. It is the host's own pool that makes it, and it is published behind
what the pool of the device has stored since the reset.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    pool = part("vllm.v1.core.block_pool")
    manager = part("vllm.v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler")

    @wrap(manager, "reset", "self.cpu_block_pool.reset_prefix_cache()")
    def _(original: Any, self: Any) -> Any:
        host = self.cpu_block_pool
        keys = [block.block_hash for block in host.blocks if block.block_hash is not None]
        done = original(self)
        if done and host.enable_kv_cache_events:
            host.kv_event_queue = [e for e in host.kv_event_queue if not isinstance(e, pool.AllBlocksCleared)]
            host._emit_block_removed_events(keys)
        return done
