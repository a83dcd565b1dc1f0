"""Evidence of what was published about the cache. Pure."""

from __future__ import annotations

from harness.checkers.hashes import computed
from harness.event_view import view
from harness.facts import Evidence
from harness.history import History


def event_facts(history: History) -> dict[str, float]:
    """What events told, and which hits they explain."""
    seen = view(history)
    if seen is None:
        names = (Evidence.STORED, Evidence.REMOVED, Evidence.CLEARED, Evidence.EXPLAINED, Evidence.OWED_BY_EVENTS)
        return dict.fromkeys((*names, Evidence.RECOMPUTED, Evidence.RECOMPUTED_ADAPTER), 0)
    bounds, again = seen.bounds(), [one for one in computed(history) if one.agrees]
    counted = [(o.cached_tokens or 0, bounds[o.request]) for o in history.outcomes if o.request in bounds]
    return {
        Evidence.STORED: seen.cache.stored,
        Evidence.REMOVED: seen.cache.removed,
        Evidence.CLEARED: seen.cache.cleared,
        Evidence.EXPLAINED: sum(0 < cached <= limits.at_most for cached, limits in counted),
        Evidence.OWED_BY_EVENTS: sum(bool(limits.at_least) for _, limits in counted),
        Evidence.RECOMPUTED: len(again),
        Evidence.RECOMPUTED_ADAPTER: sum(one.block.lora_name is not None for one in again),
    }
