"""Let a reset follow a reset: what the first one has flushed with the next step stays to be flushed.

The other two checks of the reset hold that no step is being planned. This one fails between two steps as well, since it
is the reset itself that leaves the transfers there.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler"),
        "reset_cache",
        ("    assert not self._current_batch_jobs_to_flush\n", ""),
    )
