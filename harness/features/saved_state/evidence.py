"""Evidence about states of the cache that an engine saves and restores. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import (
    History,
    Identity,
    Outcome,
    common_prefix,
    written_tokens,
)
from coldproof.harness.judgement.counters import Evidence, Trait, computes
from coldproof.harness.judgement.reference_cache import MIN_SHARED, by_chance
from coldproof.harness.workload.steps import RestoreState, save_of


class SavedState(Evidence):
    """Restored states."""

    RESTORED = "hits that only a restore explains", Trait.OF_SAVED_STATE
    RESTORED_ELSE = "requests for restored KV under another identity", Trait.OF_SAVED_STATE


@computes(SavedState, order=100)
def saved_state_facts(history: History) -> dict[str, float]:
    """Return the counters of restored states."""
    return {
        SavedState.RESTORED: sum(restored(history, o) for o in history.outcomes),
        SavedState.RESTORED_ELSE: sum(bool(saved_for(history, o) - set(o.identities)) for o in history.outcomes),
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
