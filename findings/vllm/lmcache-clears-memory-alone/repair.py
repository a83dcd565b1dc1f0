"""Report that a reset failed where LMCache's server has a tier behind its memory.

The server empties its memory alone. The connector knows of a tier behind it by the arguments with which it started the
server.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
NEEDS = ("lmcache",)


def install() -> None:
    """Plant the repair."""
    connector = part("lmcache.integration.vllm.lmcache_mp_connector", "LMCacheMPConnector")

    @wrap(connector, "reset_cache", "KVConnectorRole.SCHEDULER")
    def _(original: Any, self: Any) -> bool | None:
        done: bool | None = original(self)
        started = self._kv_transfer_config.get_from_extra_config("lmcache.mp.autostart.server_args", "")
        return False if done and "--l2-adapter" in str(started) else done
