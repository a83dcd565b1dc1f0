"""Find out the capabilities of an LMDeploy server with probe requests. What its routes lack is known without any."""

from __future__ import annotations

from coldproof.adapters.lmdeploy.client import (
    NO_CHAT,
    NO_LOADING,
    NO_PRIORITY,
    NO_PROMPT_SCORES,
    NO_RESET,
    NO_SALT,
    LmdeployClient,
)
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.server.lacking import unreported_shape
from coldproof.adapters.server.openapi import listed_routes
from coldproof.adapters.server.probe_options import probe_response_options
from coldproof.adapters.server.probes import NO_SWITCH, ProbeResult, probe_completions, provenance_support
from coldproof.adapters.server.served_model import served_model

UPDATE = "/update_weights"
NO_TENSORS = f"{UPDATE} takes tensors in shared memory of a GPU, and no path: Coldproof sends none"
SLEEP_UNUSED = "/sleep discards the cache and aborts requests: used only together with updates of the weights"
NO_COUNTERS = "the counters in /metrics leave out requests that were aborted"
UNPUBLISHED = "no route reports it"
STATIC = {
    Capability.CACHE_SALT: Support(False, NO_SALT),
    Capability.CACHE_RESET: Support(False, NO_RESET),
    Capability.CHAT: Support(False, NO_CHAT),
    Capability.PROMPT_LOGPROBS: Support(False, NO_PROMPT_SCORES),
    Capability.PRIORITY: Support(False, NO_PRIORITY),
    Capability.HIT_COUNTERS: Support(False, NO_COUNTERS),
    Capability.ADAPTER_SWITCH: Support(False, NO_SWITCH),
    Capability.KV_EVENTS: Support(False, "LMDeploy publishes no KV events"),
    Capability.SPAWNABLE: Support(False, "attached by URL"),
    Capability.PROVENANCE: provenance_support(digests=False),
    **dict.fromkeys(
        (Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE, Capability.ADAPTER_CHOICE, Capability.MIXED_ADAPTERS),
        Support(False, NO_LOADING),
    ),
    **dict.fromkeys((Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_SAME_PATH), Support(False, NO_TENSORS)),
    **dict.fromkeys((Capability.SLEEP, Capability.SLEEP_DISCARDS), Support(None, SLEEP_UNUSED)),
    **dict.fromkeys(
        (
            Capability.VERSION,
            Capability.BLOCK_SIZE,
            Capability.POOL_SIZE,
            Capability.PREEMPTION_COUNTS,
            Capability.SEVERAL_GROUPS,
            Capability.SECOND_TIER,
        ),
        Support(None, UNPUBLISHED),
    ),
}


def probe(client: LmdeployClient) -> ProbeResult:
    """Probe a server. Raises EngineError if it lists no model."""
    served = served_model(client)
    found: dict[Capability, Support] = {name: Support(False, why) for name, why in OPTIONAL_ABSENT.items()}
    null_is_miss = probe_completions(client, served.id, served.max_tokens, False, found)
    probe_response_options(client, served.id, found)
    there = UPDATE in listed_routes(client)
    how = NO_TENSORS if there else f"the server does not list {UPDATE} in /openapi.json"
    found |= {**STATIC, Capability.WEIGHT_UPDATES: Support(False, how)}
    metrics = client.metrics()
    gauges = "/metrics has the running requests" if metrics.running is not None else "no /metrics (--enable-metrics)"
    found[Capability.METRICS] = Support(metrics.running is not None, gauges)
    found[Capability.POOL_USAGE] = Support(metrics.pool_usage is not None, f"/metrics: pool usage {metrics.pool_usage}")
    return ProbeResult(
        version=None,
        base_model=served.id,
        shape=unreported_shape(served.max_tokens),
        capabilities=found,
        cache_config={},
        null_is_miss=null_is_miss,
    )
