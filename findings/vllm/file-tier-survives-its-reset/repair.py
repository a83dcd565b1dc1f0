"""Report that the reset failed where a second tier of the connector keeps its blocks.

The manager documents that it does not reset secondary tiers, so that the connector must not report success.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    connector = part("vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector", "OffloadingConnector")

    @wrap(connector, "reset_cache", "return True")
    def _(original: Any, self: Any) -> bool:
        return bool(original(self)) and not getattr(self.connector_scheduler.manager, "secondary_tiers", ())
