"""End the reservation of a request that gives its blocks back after a failed load.

The reservation is for what a load in flight still needs, and this load has ended.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.sched.scheduler", "Scheduler"),
        "_update_waiting_for_remote_kv",
        (
            "self.kv_cache_manager.free(request)\n",
            "self.kv_cache_manager.free(request); self._inflight_prefills.discard(request)\n",
        ),
    )
