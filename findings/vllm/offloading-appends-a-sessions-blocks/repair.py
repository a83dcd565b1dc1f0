"""Clear the table that a connector has of a request that is sent as a new one.

Such a request comes with its whole table. Of a session it is not the first, so that the connector already has one.
Release 0.33.0 does the same. SimpleCPUOffloadConnector stores what is right under such a table, but its KV events do
not describe it.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    scheduler = part(
        "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler"
    )

    @wrap(scheduler, "_update_req_states", "if preempted:")
    def _(original: Any, self: Any, output: Any) -> Any:
        for new in output.scheduled_new_reqs:
            for group in self._req_status[new.req_id].group_states:
                group.block_ids.clear()
        return original(self, output)

    simple = part("vllm.v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler")

    @wrap(simple, "_prepare_eager_store_specs", "state.block_ids[g].extend(new_block_id_groups[g])")
    def _(original: Any, self: Any, output: Any) -> Any:
        for new in output.scheduled_new_reqs:
            if state := self._reqs_to_store.get(new.req_id):
                for blocks in state.block_ids:
                    blocks.clear()
        return original(self, output)
