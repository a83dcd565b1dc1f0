"""Evidence about a second KV tier: its loads by cause, and failed loads. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import History, StepRecord
from coldproof.harness.judgement.evidence.names import Evidence


def tier_facts(history: History) -> dict[str, float]:
    """Return the counters of loads from the second tier. They are zero if the engine does not report loads."""
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
    """Return whether a step's requests loaded anything from the second tier."""
    return bool(increase(record.before.external_hit_tokens, record.after.external_hit_tokens))


def failed(record: StepRecord) -> bool:
    """Return whether a load failed in a step."""
    return bool(increase(record.before.failed_loads, record.after.failed_loads))


def emptied_before(history: History, record: StepRecord) -> bool:
    """Return whether a reset had emptied the pool before a step. Loads without a reset follow an eviction."""
    return any(r.success and r.ended <= record.started for r in history.resets)
