"""Find out the capabilities of a TensorRT-LLM server with probe requests. What its routes lack is known without any."""

from __future__ import annotations

import secrets

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.server.lacking import unreported_shape
from coldproof.adapters.server.probe_options import attempt, probe_response_options
from coldproof.adapters.server.probes import (
    NO_ADAPTER,
    NO_SWITCH,
    ProbeResult,
    probe_completions,
    provenance_support,
)
from coldproof.adapters.server.served_model import served_model, server_version
from coldproof.adapters.trtllm.client import NO_CHAT, NO_PRIORITY, NO_PROMPT_SCORES, NO_RESET, NO_SALT, TrtllmClient

OWN_EVENTS = "/kv_cache_events has events in the engine's own format, with hashes that Coldproof cannot compute"
NO_TENSORS = "/update_weights takes tensors in shared memory of a GPU, and no path: Coldproof sends none"
NO_COUNTERS = "/metrics has statistics of iterations, not counters"
UNPUBLISHED = "no route reports it"
ADAPTERS = (
    Capability.RUNTIME_LORA,
    Capability.LORA_IN_PLACE,
    Capability.ADAPTER_CHOICE,
    Capability.MIXED_ADAPTERS,
)
STATIC = {
    Capability.CACHE_SALT: Support(False, NO_SALT),
    Capability.CACHE_RESET: Support(False, NO_RESET),
    Capability.CHAT: Support(False, NO_CHAT),
    Capability.PROMPT_LOGPROBS: Support(False, NO_PROMPT_SCORES),
    Capability.PRIORITY: Support(False, NO_PRIORITY),
    Capability.KV_EVENTS: Support(False, OWN_EVENTS),
    Capability.ADAPTER_SWITCH: Support(False, NO_SWITCH),
    Capability.SPAWNABLE: Support(False, "attached by URL"),
    Capability.PROVENANCE: provenance_support(digests=False),
    **dict.fromkeys(
        (Capability.WEIGHT_UPDATES, Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_SAME_PATH),
        Support(False, NO_TENSORS),
    ),
    **dict.fromkeys(
        (Capability.METRICS, Capability.HIT_COUNTERS, Capability.PREEMPTION_COUNTS, Capability.POOL_USAGE),
        Support(False, NO_COUNTERS),
    ),
    **dict.fromkeys(
        (Capability.BLOCK_SIZE, Capability.POOL_SIZE, Capability.SEVERAL_GROUPS, Capability.SECOND_TIER),
        Support(None, UNPUBLISHED),
    ),
}


def probe(client: TrtllmClient, adapter_path: str | None) -> ProbeResult:
    """Probe a server. `adapter_path`: an adapter that fits its model. Raises EngineError if it lists no model."""
    served, version = served_model(client), server_version(client)
    client.base_model = served.id
    found: dict[Capability, Support] = {name: Support(False, why) for name, why in OPTIONAL_ABSENT.items()}
    null_is_miss = probe_completions(client, served.id, served.max_tokens, False, found)
    probe_response_options(client, served.id, found)
    probe_adapter(client, adapter_path, found)
    found |= {**STATIC, Capability.VERSION: Support(version is not None, f"/version: {version}")}
    return ProbeResult(
        version=version,
        base_model=served.id,
        shape=unreported_shape(served.max_tokens),
        capabilities=found,
        cache_config={},
        null_is_miss=null_is_miss,
    )


def probe_adapter(client: TrtllmClient, path: str | None, found: dict[Capability, Support]) -> None:
    """Load an adapter, which sends a request with it. A replaced adapter is a new one to the server."""
    if path is None:
        found |= dict.fromkeys(ADAPTERS, Support(None, NO_ADAPTER))
        return
    name = f"coldproof-probe-{secrets.token_hex(4)}"
    how = "a request with lora_request was answered"
    attempt(found, Capability.RUNTIME_LORA, how, lambda: client.load_adapter(name, path))
    if found[Capability.RUNTIME_LORA].present:
        client.unload_adapter(name)
    found |= dict.fromkeys(ADAPTERS, found[Capability.RUNTIME_LORA])
