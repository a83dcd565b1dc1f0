"""A second tier with a process of its own, beside an engine in this process.

LMCache's connector starts its server as a child and leaves it running. That is right in a server of vLLM, whose whole
process group is ended; here it would outlive the engine. So it is started before, and the connector finds it.

Such a tier answers after a time, not after a number of steps: an engine that only waits for it would count thousands of
steps, hence half a minute on its own clock, in the milliseconds of a lookup, and seem to hang.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import Any

import psutil

from coldproof.adapters.common.process import EngineProcess, port_is_taken
from coldproof.adapters.common.stepping import STEP_MS
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.spec.engine_spec import SIDE_LOG
from coldproof.adapters.vllm.kv_tiers import LMCACHE_PORT, LMCACHE_START, TIERS, Tier, connector_config
from coldproof.adapters.vllm.releases import is_cpu_build
from coldproof.adapters.vllm.server import FORKING, START_SECONDS, VllmOptions, environment, tier_folder

POLL_SECONDS = 0.001
DOWN_SECONDS = 3.0  # as in prefill_decode.py
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
    process = EngineProcess(
        command,
        environment(options.environment),
        options.log.with_suffix(SIDE_LOG),
        forking=FORKING if is_cpu_build() else None,  # each start would import torch
    )
    end = time.monotonic() + START_SECONDS
    while not port_is_taken(port):
        if not process.running() or time.monotonic() > end:
            process.stop()
            raise EngineStartError(f"the tier's server did not start; the end of its log:\n{process.tail()}")
        time.sleep(0.05)
    return process


def restarted_server(options: VllmOptions, server: EngineProcess) -> EngineProcess:
    """Kill the server of an engine's tier, as a machine that fails, and return the next one on its port.

    Raises EngineStartError if it does not start.
    """
    for process in server.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.stop()
    time.sleep(DOWN_SECONDS)
    following = started_server(options)
    assert following is not None  # the options are those with which the first one was started
    return following


def keeps_own_time(tier: Tier | None) -> bool:
    """Return whether a tier may work in another process: one with a server, and any that is the user's."""
    return tier is not None and (LMCACHE_START in tier.options or tier not in TIERS.values())


def step_in_time(engine: Any) -> Any:
    """Step vLLM's engine, and return its outputs.

    While all requests only wait, a step takes as long as it counts on the engine's own clock.
    """
    scheduler = engine.engine_core.engine_core.scheduler
    end = time.monotonic() + STEP_MS / 1000
    while True:
        outputs = engine.step()
        running, waiting = scheduler.get_request_counts()
        if outputs or running or not waiting or time.monotonic() >= end:
            return outputs
        time.sleep(POLL_SECONDS)
