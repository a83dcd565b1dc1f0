"""Evidence from published KV events. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import History
from coldproof.harness.judgement.checkers.block_hashes import computed
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.kv_events.expected_hits import view


def event_facts(history: History) -> dict[str, float]:
    """Return the counters of events, of the hits that they explain, and of verified block hashes."""
    seen = view(history)
    if seen is None:
        names = (Evidence.STORED, Evidence.REMOVED, Evidence.CLEARED, Evidence.EXPLAINED, Evidence.OWED_BY_EVENTS)
        return dict.fromkeys((*names, Evidence.RECOMPUTED, Evidence.RECOMPUTED_ADAPTER), 0)
    bounds, verified = seen.bounds(), [one for one in computed(history) if one.agrees]
    counted = [(o.cached_tokens or 0, bounds[o.request]) for o in history.outcomes if o.request in bounds]
    return {
        Evidence.STORED: seen.cache.stored,
        Evidence.REMOVED: seen.cache.removed,
        Evidence.CLEARED: seen.cache.cleared,
        Evidence.EXPLAINED: sum(0 < cached <= limits.at_most for cached, limits in counted),
        Evidence.OWED_BY_EVENTS: sum(bool(limits.at_least) for _, limits in counted),
        Evidence.RECOMPUTED: len(verified),
        Evidence.RECOMPUTED_ADAPTER: sum(one.block.lora_name is not None for one in verified),
    }
