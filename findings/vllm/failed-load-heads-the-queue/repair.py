"""Let a request whose load failed leave the queue of those that hold blocks.

It has just given its blocks back, so that the rule of that queue (nothing behind the first one that does not fit) is
not meant for it. It is moved to the other waiting requests, as one that holds none. There it is also no longer counted
beside its own reservation.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
ALSO = ("vllm/failed-load-waits-for-itself",)


def install() -> None:
    """Plant the repair."""
    scheduler = part("vllm.v1.core.sched.scheduler", "Scheduler")
    loading = part("vllm.v1.request", "RequestStatus").WAITING_FOR_REMOTE_KVS

    @wrap(scheduler, "_handle_blocked_waiting_request", "self._update_waiting_for_remote_kv(request)")
    def _(original: Any, self: Any, request: Any) -> bool:
        loaded = request.status == loading
        return bool(original(self, request) and (not loaded or self._holds_kv_blocks(request)))
