"""Evidence about KV events, and the hits that they explain. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.events.facts import quiet_resets
from coldproof.harness.features.events.hash_checks import computed
from coldproof.harness.history.records import (
    History,
)
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.expected_hits import view


class Events(Evidence):
    """KV events, and what they explain."""

    STORED = "blocks stored, by KV events", Capability.KV_EVENTS
    REMOVED = "blocks removed, by KV events"
    CLEARED = "all-blocks-cleared events"
    EXPLAINED = "hits explained by earlier KV events"
    RESIDENT = "requests whose blocks were resident, by KV events"
    QUIET_RESETS = "cache resets after which the engine stayed idle"
    RESTARTS = "restarts between published KV events"
    RECOMPUTED = "block hashes recomputed from their events"
    RECOMPUTED_ADAPTER = "recomputed block hashes of adapters"


@computes(Events, order=80)
def event_facts(history: History) -> dict[str, float]:
    """Return the counters of events, of the hits that they explain, and of verified block hashes."""
    seen = view(history)
    if seen is None:
        return dict.fromkeys(Events, 0)
    bounds, verified = seen.bounds(), [one for one in computed(history) if one.agrees]
    counted = [(o.cached_tokens or 0, bounds[o.request]) for o in history.outcomes if o.request in bounds]
    return {
        Events.STORED: seen.cache.stored,
        Events.REMOVED: seen.cache.removed,
        Events.CLEARED: seen.cache.cleared,
        Events.RESTARTS: sum(0 < one.batches < len(seen.events.batches) for one in seen.events.restarts),
        Events.QUIET_RESETS: sum(1 for _ in quiet_resets(history)),
        Events.EXPLAINED: sum(0 < cached <= limits.at_most for cached, limits in counted),
        Events.RESIDENT: sum(bool(limits.at_least) for _, limits in counted),
        Events.RECOMPUTED: len(verified),
        Events.RECOMPUTED_ADAPTER: sum(one.block.lora_name is not None for one in verified),
    }
