"""Evidence about an engine with several ranks. Pure."""

from __future__ import annotations

import functools

from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.evidence.cache import shares


class Ranks(Evidence):
    """An engine with several ranks."""

    ASKED = "changes after which every rank was asked"
    HITS = "hits on a rank other than the first"
    OTHER_RANK = "requests of which only another rank had computed a block"


@computes(Ranks, order=170)
def rank_facts(history: History) -> dict[str, float]:
    """Return the counters of changes that every rank was asked about, and of hits by rank."""
    hits = [outcome for outcome in history.outcomes if outcome.hit_at_least > 0]
    changed = [record for record in history.steps if changes(history, record.step)]
    ends = [*(record.step for record in changed[1:]), len(history.workload.steps)]
    return {
        Ranks.ASKED: sum(
            record.error is None and asked_everywhere(history, record.step, end)
            for record, end in zip(changed, ends, strict=False)
        ),
        Ranks.HITS: sum(bool(outcome.partition.rank) for outcome in hits),
        Ranks.OTHER_RANK: sum(map(functools.partial(only_elsewhere, history), history.outcomes))
        if history.shape.ranks > 1
        else 0,
    }


def asked_everywhere(history: History, step: int, end: int) -> bool:
    """Return whether each rank answered, behind a change in `step` and up to the next one in `end`, a request that
    shares a block with one that this rank had answered before the change.
    """
    asked = (
        outcome.partition.rank
        for outcome in history.outcomes
        if step < outcome.step <= end
        and outcome.answered
        and any(
            before.step <= step and before.partition.rank == outcome.partition.rank and shares(history, before, outcome)
            for before in history.outcomes
        )
    )
    if history.shape.ranks == 1:  # all ranks of a spread model serve each request
        return any(True for _ in asked)
    return len(set(asked) - {None}) == history.shape.ranks


def changes(history: History, step: int) -> bool:
    """Return whether a step makes a change that each rank has to make, alone or during a burst."""
    return any(change.reaches_every_rank for change in history.workload.steps[step].changes)


def only_elsewhere(history: History, outcome: Outcome) -> bool:
    """Return whether only another rank had computed a block of this request's prompt under its identity."""
    known = [
        other.partition.rank
        for other in history.outcomes
        if other.sent < outcome.sent and other.identities == outcome.identities and shares(history, other, outcome)
    ]
    return bool(known) and None not in (outcome.partition.rank, *known) and outcome.partition.rank not in known
