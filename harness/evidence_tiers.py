"""Evidence of what a second KV tier gave, after which loss, and what it failed to give. Pure."""

from __future__ import annotations

from adapters.base import grown
from harness.facts import Evidence
from harness.history import History, StepRecord


def tier_facts(history: History) -> dict[str, float]:
    """Loads by what had made them necessary. An engine that does not count them shows none."""
    last = history.steps[-1].after if history.steps else None
    loading = [r for r in history.steps if loaded(r)]
    first_failure = min((r.started for r in history.steps if failed(r)), default=None)
    return {
        Evidence.LOADED: (last.external_hit_tokens or 0) if last else 0,
        Evidence.LOADED_EVICTED: sum(not emptied_before(history, r) for r in loading),
        Evidence.LOADED_RESET: sum(emptied_before(history, r) for r in loading),
        Evidence.LOADED_RESUMED: (last.resumed_hit_tokens or 0) if last else 0,
        Evidence.FAILED_LOADS: (last.failed_loads or 0) if last else 0,
        Evidence.AFTER_FAILURE: sum(
            o.answered and first_failure is not None and o.finished > first_failure for o in history.outcomes
        ),
    }


def loaded(record: StepRecord) -> bool:
    """Whether a step's requests got anything from the second tier."""
    return bool(grown(record.before.external_hit_tokens, record.after.external_hit_tokens))


def failed(record: StepRecord) -> bool:
    """Whether a load failed in a step."""
    return bool(grown(record.before.failed_loads, record.after.failed_loads))


def emptied_before(history: History, record: StepRecord) -> bool:
    """Whether a reset had emptied the pool before a step. What is loaded without one, the pool had evicted."""
    return any(r.success and r.ended <= record.started for r in history.resets)
