"""All faults, by name. Each names the public report, or the class of reports, that it reproduces."""

from __future__ import annotations

from coldproof.adapters.spec.fault import Fault
from coldproof.adapters.vllm.faults.blocks import ageing, leaks, lost_hits, rare_hits, references, sharers
from coldproof.adapters.vllm.faults.content import (
    adapter_states,
    cache_groups,
    drafts,
    group_states,
    lora_weights,
    pooling,
    published_blocks,
    sessions,
)
from coldproof.adapters.vllm.faults.keys import (
    block_hashes,
    doors,
    embedding_rows,
    image_caches,
    images,
    lora_and_salt,
    rare_identities,
)
from coldproof.adapters.vllm.faults.reporting import cached_tokens, kv_events, metrics, rare_reports, response_options
from coldproof.adapters.vllm.faults.scheduling import (
    aborts,
    cache_reset,
    collisions,
    preemption,
    queue_states,
    ranks,
    resumption,
    stalls,
    weight_updates,
)
from coldproof.adapters.vllm.faults.tiers import between_engines, keys_and_loads, rare_transfers, transfers

MECHANISMS = (
    block_hashes,
    lora_and_salt,
    embedding_rows,
    doors,
    images,
    image_caches,
    lora_weights,
    published_blocks,
    drafts,
    pooling,
    sessions,
    references,
    lost_hits,
    cached_tokens,
    preemption,
    resumption,
    cache_reset,
    aborts,
    stalls,
    weight_updates,
    ranks,
    leaks,
    response_options,
    cache_groups,
    kv_events,
    keys_and_loads,
    transfers,
    between_engines,
    metrics,
    # Faults at rare states, by the place of what goes wrong.
    rare_identities,
    adapter_states,
    rare_hits,
    sharers,
    ageing,
    queue_states,
    collisions,
    group_states,
    rare_transfers,
    rare_reports,
)
FAULTS: dict[str, Fault] = {name: fault for mechanism in MECHANISMS for name, fault in mechanism.FAULTS.items()}
if len(FAULTS) < sum(len(mechanism.FAULTS) for mechanism in MECHANISMS):
    raise ValueError("two mechanisms have a fault of one name")


def format_faults() -> str:
    """Return a text with one line for each fault, grouped by mechanism."""
    width = max(len(name) for name in FAULTS)
    lines = []
    for mechanism in MECHANISMS:
        lines += ["", f"{(mechanism.__doc__ or '').strip()}"]
        lines += [f"  {name:<{width}}  {fault.summary}" for name, fault in mechanism.FAULTS.items()]
    return "\n".join(lines[1:])
