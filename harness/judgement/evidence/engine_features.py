"""Evidence about features of few engines: restored states, non-prefix reuse, a second KV tier, KV events. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.history.non_prefix_reuse import may_be_changed
from coldproof.harness.history.quiet_resets import quiet_resets
from coldproof.harness.history.records import (
    History,
    Identity,
    Outcome,
    StepRecord,
    common_prefix,
    restart_times,
    written_tokens,
)
from coldproof.harness.judgement.checkers.block_hashes import computed
from coldproof.harness.judgement.counters import Evidence, Trait, computes
from coldproof.harness.judgement.expected_hits import view
from coldproof.harness.judgement.reference_cache import by_chance
from coldproof.harness.judgement.request_sizes import outgrows
from coldproof.harness.workload.steps import RestoreState, save_of

MIN_SHARED = 16  # tokens of a prefix: more than a nonce, which all prompts of a run share


class Modes(Evidence):
    """Restored states, non-prefix reuse, and contexts that are too short."""

    RESTORED = "hits that only a restore explains", Trait.OF_SAVED_STATE
    RESTORED_ELSE = "requests for restored KV under another identity", Trait.OF_SAVED_STATE
    MOVED = "prompt tokens reused at another position"
    MAY_BE_CHANGED = "answers that a lossy mode may have changed"
    OUTGROWN = "answers longer than their context"
    AFTER_OUTGROWN = "requests that share a prefix with an earlier one longer than its context"
    CUT_HISTORY = "prompts that begin with a later part of an earlier request and its answer"


@computes(Modes, order=100)
def mode_facts(history: History) -> dict[str, float]:
    """Return the counters of these modes."""
    return {
        Modes.RESTORED: sum(restored(history, o) for o in history.outcomes),
        Modes.RESTORED_ELSE: sum(bool(saved_for(history, o) - set(o.identities)) for o in history.outcomes),
        Modes.MOVED: sum(moved_tokens(history, o) for o in history.outcomes),
        Modes.MAY_BE_CHANGED: sum(o.error is None and o.request in may_be_changed(history) for o in history.outcomes),
        Modes.OUTGROWN: sum(o.answered and outgrows(history, o) for o in history.outcomes),
        Modes.AFTER_OUTGROWN: sum(o.answered and after_outgrown(history, o) for o in history.outcomes),
        Modes.CUT_HISTORY: sum(o.answered and o.request in later_parts(history) for o in history.outcomes),
    }


def last_restore(history: History, outcome: Outcome) -> tuple[int, int] | None:
    """Return (save, restore), the steps of the last restore before a request; None if it restored nothing."""
    records = {record.step: record for record in history.steps}
    for step in range(outcome.step - 1, -1, -1):
        if isinstance(history.workload.steps[step], RestoreState):
            saved = save_of(history.workload, step)
            return None if saved is None or not records[step].moved_tokens else (saved, step)
    return None


def best(history: History, outcome: Outcome, steps: range) -> int:
    """Return the longest prefix of a prompt that any request of these steps computed."""
    others = (o for o in history.outcomes if o.step in steps)
    return max((common_prefix(written_tokens(o), outcome.prompt) for o in others), default=0)


def restored(history: History, outcome: Outcome) -> bool:
    """Return whether a hit is longer than any prefix that was computed since the save before the last restore."""
    found = last_restore(history, outcome)
    if found is None:
        return False
    since = best(history, outcome, range(found[0], outcome.step))
    return outcome.hit_at_least > max(since, by_chance(history.shape))


def saved_for(history: History, outcome: Outcome) -> set[Identity]:
    """Return the identities that computed a prefix of the prompt which only the last restore can have brought back."""
    found = last_restore(history, outcome)
    if found is None or not outcome.answered or best(history, outcome, range(found[1], outcome.step)) >= MIN_SHARED:
        return set()
    return {
        identity
        for other in history.outcomes
        if other.step < found[0] and common_prefix(written_tokens(other), outcome.prompt) >= MIN_SHARED
        for identity in other.identities
    }


def moved_tokens(history: History, outcome: Outcome) -> int:
    """Return the hit tokens beyond any computed prefix, which were reused from other positions."""
    if not history.shape.moves_pieces_of:
        return 0
    others = (o for o in history.outcomes if o.request != outcome.request and o.sent < outcome.finished)
    prefix = max((common_prefix(written_tokens(o), outcome.prompt) for o in others), default=0)
    return max(0, outcome.hit_at_least - max(prefix, by_chance(history.shape)))


def after_outgrown(history: History, outcome: Outcome) -> bool:
    """Return whether a request that fits its context shares a prefix with an earlier one that exceeded its context."""
    return not outgrows(history, outcome) and any(
        outgrows(history, o)
        and o.finished <= outcome.sent
        and common_prefix(written_tokens(o), outcome.prompt) >= MIN_SHARED
        for o in history.outcomes
    )


def later_parts(history: History) -> set[int]:
    """Return the requests that leave out the beginning of the history that they continue."""
    return {number for number, _, request in history.workload.requests() if request.prompt.start}


class Tiers(Evidence):
    """Loads from a second tier, also of what an earlier engine left there."""

    LOADED = "tokens loaded from the second tier"
    LOADED_EVICTED = "bursts that loaded evicted blocks"
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
        Tiers.LOADED_EVICTED: sum(not emptied_before(history, r) for r in loading),
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


def failed(record: StepRecord) -> bool:
    """Return whether a load failed in a step."""
    return bool(increase(record.before.failed_loads, record.after.failed_loads))


def emptied_before(history: History, record: StepRecord) -> bool:
    """Return whether a reset had emptied the pool before a step. Loads without a reset follow an eviction."""
    return any(r.success and r.ended <= record.started for r in history.resets)


class Events(Evidence):
    """KV events, and what they explain."""

    STORED = "blocks stored, by KV events"
    REMOVED = "blocks removed, by KV events"
    CLEARED = "all-blocks-cleared events"
    EXPLAINED = "hits explained by earlier KV events"
    OWED = "requests whose blocks were resident, by KV events"
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
        Events.OWED: sum(bool(limits.at_least) for _, limits in counted),
        Events.RECOMPUTED: len(verified),
        Events.RECOMPUTED_ADAPTER: sum(one.block.lora_name is not None for one in verified),
    }
