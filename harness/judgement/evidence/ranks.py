"""Evidence about an engine with several ranks. Pure."""

from __future__ import annotations

import msgspec

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.evidence.cache import shares
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.workload.steps import Burst, Pause, Reset, SetAdapter, Sleep, UpdateWeights

CHANGES = SetAdapter | Reset | UpdateWeights | Pause | Sleep


def rank_facts(history: History) -> dict[str, float]:
    """Return the counters of changes that every rank was asked about, and of hits by rank."""
    hits = [outcome for outcome in history.outcomes if outcome.hit_at_least > 0]
    return {
        Evidence.RANKS_ASKED: sum(asked_everywhere(history, record.step) for record in history.steps),
        Evidence.RANK_HITS: sum(bool(rank_of(outcome)) for outcome in hits),
        Evidence.OTHER_RANK: sum(only_elsewhere(history, outcome) for outcome in history.outcomes),
    }


def asked_everywhere(history: History, step: int) -> bool:
    """Return whether a step made a change, and then each rank answered, before the next change, a request that shares
    a block with one that this rank had answered before the change.
    """
    record = next(record for record in history.steps if record.step == step)
    if record.error is not None or not changes(history, step):
        return False
    later = (other.step for other in history.steps if other.step > step and changes(history, other.step))
    end = min(later, default=len(history.workload.steps))
    asked = {
        rank_of(outcome)
        for outcome in history.outcomes
        if step < outcome.step <= end
        and outcome.answered
        and any(
            before.step <= step and rank_of(before) == rank_of(outcome) and shares(history, before, outcome)
            for before in history.outcomes
        )
    }
    return len(asked - {None}) == history.shape.ranks if history.shape.ranks > 1 else bool(asked)


def changes(history: History, step: int) -> bool:
    """Return whether a step makes a change that each rank has to make, alone or during a burst."""
    match history.workload.steps[step]:
        case Burst(meanwhile=meanwhile):
            return meanwhile is not None and any(isinstance(change, CHANGES) for change in meanwhile.changes)
        case other:
            return isinstance(other, CHANGES)


def only_elsewhere(history: History, outcome: Outcome) -> bool:
    """Return whether only another rank had computed a block of this request's prompt under its identity."""
    known = [
        rank_of(other)
        for other in history.outcomes
        if other.sent < outcome.sent and other.identities == outcome.identities and shares(history, other, outcome)
    ]
    return bool(known) and None not in (rank_of(outcome), *known) and rank_of(outcome) not in known


def rank_of(outcome: Outcome) -> int | None:
    """Return the rank that served a request; None where the engine chose it or has one cache."""
    return None if outcome.residence.rank is msgspec.UNSET else outcome.residence.rank
