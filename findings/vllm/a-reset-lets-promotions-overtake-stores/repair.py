"""Hold promotions from a secondary tier until the transfers from before a reset have ended.

A reset hands out all slots of the primary tier again, but transfers that a worker still has are only flushed with the
next step's metadata. A promotion is submitted while that step is scheduled, and would meet them in one slot.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    scheduler = part(
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler"
    )
    edit(
        scheduler,
        "__init__",
        (
            "    self._stale_job_threshold: int = 0\n",
            "    self._stale_job_threshold: int = 0\n"
            "    # Transfers from before a reset, with the number of workers that still have them.\n"
            "    self._stale_jobs: dict[int, int] = {}\n"
            "    self.manager.stale_jobs = self._stale_jobs\n",
        ),
    )
    edit(
        scheduler,
        "reset_cache",
        (
            "    self._jobs.clear()\n",
            "    self._stale_jobs.update({job: status.pending_count for job, status in self._jobs.items()})\n"
            "    self._jobs.clear()\n",
        ),
    )
    edit(
        scheduler,
        "update_connector_output",
        (
            "        if job_id < self._stale_job_threshold:\n",
            "        if job_id < self._stale_job_threshold:\n"
            "            self._stale_jobs[job_id] -= count\n"
            "            if not self._stale_jobs[job_id]:\n"
            "                del self._stale_jobs[job_id]\n",
        ),
    )
    edit(
        scheduler,
        "has_pending_push_work",
        ("return bool(self._jobs) or ", "return bool(self._jobs or self._stale_jobs) or "),
    )
    edit(
        part("vllm.v1.kv_offload.tiering.manager", "TieringOffloadingManager"),
        "_flush_pending_promotions",
        ("if not self._pending_load_submissions:", "if not self._pending_load_submissions or self.stale_jobs:"),
    )
