"""Evidence of what few engines offer: states restored, pieces reused at other places, contexts outgrown. Pure."""

from __future__ import annotations

from harness.facts import Evidence
from harness.history import History, Identity, Outcome
from harness.moved import may_be_changed
from harness.reference_cache import by_chance, outgrows
from harness.tokens_computed import common_prefix, computed
from harness.workload import RestoreState, save_of

WORTH_SHARING = 16  # tokens: more than a nonce, which all prompts of a run share


def mode_facts(history: History) -> dict[str, float]:
    """What happened of each."""
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
    """(save, restore): the steps of the last restore before a request that brought anything back."""
    records = {record.step: record for record in history.steps}
    for step in range(outcome.step - 1, -1, -1):
        if isinstance(history.workload.steps[step], RestoreState):
            saved = save_of(history.workload, step)
            return None if saved is None or not records[step].moved_tokens else (saved, step)
    return None


def best(history: History, outcome: Outcome, steps: range) -> int:
    """The longest prefix of a prompt that a request of these steps had computed, whoever it was."""
    others = (o for o in history.outcomes if o.step in steps)
    return max((common_prefix(computed(o), outcome.prompt) for o in others), default=0)


def restored(history: History, outcome: Outcome) -> bool:
    """Whether a hit reaches further than anything that was computed since the save, but by those beside it."""
    found = last_restore(history, outcome)
    if found is None:
        return False
    since = best(history, outcome, range(found[0], outcome.step))
    return outcome.hit_at_least > max(since, by_chance(history.shape))


def saved_for(history: History, outcome: Outcome) -> set[Identity]:
    """The identities under which much of a prompt had been computed that a restore has just brought back."""
    found = last_restore(history, outcome)
    if found is None or not outcome.answered or best(history, outcome, range(found[1], outcome.step)) >= WORTH_SHARING:
        return set()
    return {
        identity
        for other in history.outcomes
        if other.step < found[0] and common_prefix(computed(other), outcome.prompt) >= WORTH_SHARING
        for identity in other.identities
    }


def moved_tokens(history: History, outcome: Outcome) -> int:
    """Hit tokens beyond any prefix that anybody had computed: they stood elsewhere."""
    if not history.shape.moves_pieces_of:
        return 0
    others = (o for o in history.outcomes if o.request != outcome.request and o.sent < outcome.finished)
    prefix = max((common_prefix(computed(o), outcome.prompt) for o in others), default=0)
    return max(0, outcome.hit_at_least - max(prefix, by_chance(history.shape)))


def after_outgrown(history: History, outcome: Outcome) -> bool:
    """Whether a request that fits has much in common with one before it that outgrew its context."""
    return not outgrows(history, outcome) and any(
        outgrows(history, o)
        and o.finished <= outcome.sent
        and common_prefix(computed(o), outcome.prompt) >= WORTH_SHARING
        for o in history.outcomes
    )
