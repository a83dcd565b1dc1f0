"""Take a connector without a reset for one that failed to reset.

The default of `reset_cache` returns None, and the tier then still has every block.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.sched.scheduler", "Scheduler"),
        "reset_connector_cache",
        ("self.connector.reset_cache() is False", "not self.connector.reset_cache()"),
    )
