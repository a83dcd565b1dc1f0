"""Publish the events of a reset at once.

No step may follow for a long time, and a step is the only other occasion at which the queue of events is published.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    import time

    batch = part("vllm.distributed.kv_events", "KVEventBatch")

    @wrap(part("vllm.v1.core.sched.scheduler", "Scheduler"), "reset_prefix_cache", "self.kv_cache_manager.reset_prefix")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        done = original(self, *arguments, **options)
        if events := self.kv_cache_manager.take_events():
            self.kv_event_publisher.publish(batch(ts=time.time(), events=events))
        return done
