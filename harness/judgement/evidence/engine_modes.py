"""Evidence about modes of few engines: restored states, non-prefix KV reuse, exceeded contexts. Pure."""

from __future__ import annotations

from coldproof.harness.history.computed_tokens import common_prefix, written_tokens
from coldproof.harness.history.non_prefix_reuse import may_be_changed
from coldproof.harness.history.records import History, Identity, Outcome
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.reference_cache import by_chance, outgrows
from coldproof.harness.workload.steps import RestoreState, save_of

MIN_SHARED = 16  # tokens of a prefix: more than a nonce, which all prompts of a run share


def mode_facts(history: History) -> dict[str, float]:
    """Return the counters of these modes."""
    return {
        Evidence.RESTORED: sum(restored(history, o) for o in history.outcomes),
        Evidence.RESTORED_ELSE: sum(bool(saved_for(history, o) - set(o.identities)) for o in history.outcomes),
        Evidence.MOVED: sum(moved_tokens(history, o) for o in history.outcomes),
        Evidence.MAY_BE_CHANGED: sum(
            o.error is None and o.request in may_be_changed(history) for o in history.outcomes
        ),
        Evidence.OUTGROWN: sum(o.answered and outgrows(history, o) for o in history.outcomes),
        Evidence.AFTER_OUTGROWN: sum(o.answered and after_outgrown(history, o) for o in history.outcomes),
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
