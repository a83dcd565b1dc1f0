"""The server of a second tier beside an engine in this process.

LMCache's connector starts its server as a child and leaves it running. That is right in a server of vLLM, whose whole
process group is ended; here it would outlive the engine. So it is started before, and the connector finds it.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from coldproof.adapters.common.process import EngineProcess, port_is_taken
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.vllm.kv_tiers import LMCACHE_PORT, LMCACHE_START, connector_config
from coldproof.adapters.vllm.server import START_SECONDS, VllmOptions, environment, tier_folder

LAUNCHER = "lmcache.integration.vllm.mp_server_launcher"
HOST = "127.0.0.1"


def started_server(options: VllmOptions) -> EngineProcess | None:
    """Start the server that the engine's connector would start, and wait for it; None if it would start none.

    Raises EngineStartError.
    """
    tier = options.tier
    if tier is None or not options.prefix_caching or LMCACHE_START not in tier.options:
        return None
    config = connector_config(tier, tier_folder(options), options.tier_port)["kv_connector_extra_config"]
    port = int(config[LMCACHE_PORT])
    launcher: Any = importlib.import_module(LAUNCHER)
    command = launcher.MPServerAutostartConfig.from_extra_config(config, HOST, port).command()
    process = EngineProcess(command, environment(options.environment), options.log.with_suffix(".tier-server.log"))
    end = time.monotonic() + START_SECONDS
    while not port_is_taken(port):
        if not process.running() or time.monotonic() > end:
            process.stop()
            raise EngineStartError(f"the tier's server did not start; the end of its log:\n{process.tail()}")
        time.sleep(0.05)
    return process
