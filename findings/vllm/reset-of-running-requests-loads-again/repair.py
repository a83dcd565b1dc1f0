"""Flush the stores of a preempted request and leave its loads alone.

The scheduler may resume a request in the step in which it preempted it. Then a load is planned beside the stores, and
only the stores read blocks that were given back.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler"),
        "build_connector_meta",
        (
            "any_jid = next(iter(req_status.transfer_jobs))\n",
            "stores = {job for job in req_status.transfer_jobs if self._jobs[job].is_store}\n",
        ),
        ("        assert self._jobs[any_jid].is_store\n", ""),
        (
            "self._current_batch_jobs_to_flush.update(req_status.transfer_jobs)",
            "self._current_batch_jobs_to_flush.update(stores)",
        ),
    )
