"""Evidence about loads from a second KV tier. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.records import (
    History,
    Outcome,
    StepRecord,
    common_prefix,
    restart_times,
    written_tokens,
)
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.reference_cache import MIN_SHARED, by_chance


class Tiers(Evidence):
    """Loads from a second tier, also of what an earlier engine left there."""

    LOADED = "tokens loaded from the second tier", Capability.SECOND_TIER
    LOADED_SLOW = "tokens loaded from a tier behind the second one", Capability.SLOW_TIER
    LOADED_EVICTED = "bursts that loaded evicted blocks"
    LOADED_BESIDE_HITS = "bursts with hits in the pool and loads"
    LOADED_RESET = "bursts that loaded after a reset had emptied the pool"
    LOADED_RESUMED = "tokens that preempted requests loaded back"
    AFTER_OTHER_ENGINE = "requests that could have loaded KV of an engine with a difference"
    LOADED_AFTER_RESTART = "hits that only an earlier engine explains"
    FAILED_LOADS = "loads from the second tier that failed"
    AFTER_FAILURE = "requests answered in or after a burst with a failed load"


@computes(Tiers, order=90)
def tier_facts(history: History) -> dict[str, float]:
    """Return the counters of loads from the second tier. They are zero if the engine does not report loads. A decoder
    counts in the same place what it fetches from a prefiller.
    """
    steps = () if history.shape.fetches_prompts else history.steps
    last = steps[-1].after if steps else None
    loading = [r for r in steps if loaded(r)]
    first_failure = min((r.started for r in history.steps if failed(r)), default=None)
    return {
        Tiers.LOADED: (last.external_hit_tokens or 0) if last else 0,
        Tiers.LOADED_SLOW: (last.slow_hit_tokens or 0) if last else 0,
        Tiers.LOADED_EVICTED: sum(not emptied_before(history, r) for r in loading),
        Tiers.LOADED_BESIDE_HITS: sum(hit(r) for r in loading),
        Tiers.LOADED_RESET: sum(emptied_before(history, r) for r in loading),
        Tiers.LOADED_RESUMED: (last.resumed_hit_tokens or 0) if last else 0,
        Tiers.AFTER_OTHER_ENGINE: sum(bool(earlier_lives(history, o, same=False)) for o in history.outcomes),
        Tiers.LOADED_AFTER_RESTART: sum(
            bool(o.hit_at_least > own_prefix(history, o))
            for o in history.outcomes
            if earlier_lives(history, o, same=True)
        ),
        Tiers.FAILED_LOADS: (last.failed_loads or 0) if last else 0,
        Tiers.AFTER_FAILURE: sum(
            o.answered and first_failure is not None and o.finished > first_failure for o in history.outcomes
        ),
    }


def earlier_lives(history: History, outcome: Outcome, *, same: bool) -> list[Outcome]:
    """Return requests before a restart that computed a prefix of an answered prompt, with the same identity or not."""
    restart = max((at for at in restart_times(history) if at <= outcome.sent), default=None)
    if restart is None or not outcome.answered:
        return []
    return [
        other
        for other in history.outcomes
        if other.finished <= restart
        and (set(other.identities) == set(outcome.identities)) is same
        and common_prefix(written_tokens(other), outcome.prompt) >= MIN_SHARED
    ]


def own_prefix(history: History, outcome: Outcome) -> int:
    """Return the longest prefix of a prompt that this engine computed itself, since the last restart."""
    restart = max((at for at in restart_times(history) if at <= outcome.sent), default=0.0)
    own = (o for o in history.outcomes if o.sent >= restart and o.request != outcome.request and o.sent < outcome.sent)
    longest = max((common_prefix(written_tokens(o), outcome.prompt) for o in own), default=0)
    return max(longest, by_chance(history.shape))


def loaded(record: StepRecord) -> bool:
    """Return whether a step's requests loaded anything from the second tier."""
    return bool(increase(record.before.external_hit_tokens, record.after.external_hit_tokens))


def hit(record: StepRecord) -> bool:
    """Return whether a step's requests hit anything in the pool."""
    return bool(increase(record.before.hit_tokens, record.after.hit_tokens))


def failed(record: StepRecord) -> bool:
    """Return whether a load failed in a step."""
    return bool(increase(record.before.failed_loads, record.after.failed_loads))


def emptied_before(history: History, record: StepRecord) -> bool:
    """Return whether a reset had emptied the pool before a step. Loads without a reset follow an eviction."""
    return any(r.success and r.ended <= record.started for r in history.resets)
