"""Counts requests after updates of the weights by pair: the route of the update, and what made the engine forget.

Only requests count that share a block of their prompt with what other weights computed before: any other request is
right whatever the engine did. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from coldproof.adapters.protocol.weights import PauseMode, WeightPolicy
from coldproof.harness.history.records import History, Outcome, ResetRecord, WeightUpdate, common_prefix, written_tokens
from coldproof.harness.history.weights import (
    computing_since,
    empties,
    has_new_salt,
    is_comparable,
    latest_update,
    starts_clean,
    updates_during,
)
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.schema.weight_updates import Invalidation
from coldproof.harness.workload.steps import UpdateWeights, all_changes

DEFAULT_BLOCK = 16
PAUSES = {  # mode -> for an update during the pause, for a pause after the update
    PauseMode.KEEP: (Invalidation.KEEP_AROUND, Invalidation.KEEP_AFTER),
    PauseMode.ABORT: (Invalidation.ABORT_AROUND, Invalidation.ABORT_AFTER),
    PauseMode.WAIT: (Invalidation.WAIT_AROUND, Invalidation.WAIT_AFTER),
}
# The classes of a wrong answer and of a hit that must not be. Other findings say nothing about old KV.
WRONG = (
    FailureClass.STALE_STATE,
    FailureClass.CROSS_REQUEST,
    FailureClass.CORRUPT,
    FailureClass.NOT_THE_CACHE,
    FailureClass.ACCOUNTING,
)


class PairCount(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one history for one pair. `UpdateCount` explains the fields."""

    route: str
    invalidation: Invalidation
    policy: WeightPolicy
    requests: int
    wrong: int
    hits: int | None


def pair_counts(history: History, findings: Iterable[Finding]) -> list[PairCount]:
    """Return the counts of every pair in a history. `findings`: what was found in it."""
    pairs: dict[tuple[str, Invalidation], list[Outcome]] = defaultdict(list)
    for outcome in history.outcomes:
        update = latest_update(history, computing_since(outcome, history.pauses))
        if update is None or not outcome.answered or updates_during(history, outcome):
            continue
        if could_hit_others(history, outcome):
            pairs[update.route.value, invalidation_of(history, outcome, update)].append(outcome)
    named = {found.request for found in findings if found.failure_class in WRONG}
    return [pair_count(history, pair, outcomes, named) for pair, outcomes in pairs.items()]


def pair_count(
    history: History, pair: tuple[str, Invalidation], outcomes: list[Outcome], named: set[int | None]
) -> PairCount:
    """Return the counts of one pair. `named`: the requests that a finding calls wrong."""
    route, by = pair
    compared = by is not Invalidation.NOTHING
    counted = [outcome.hit_at_least for outcome in outcomes if outcome.hit_at_most is not None]
    return PairCount(
        route=route,
        invalidation=by,
        policy=history.policy,
        requests=len(outcomes),
        wrong=sum(outcome.request in named for outcome in outcomes) if compared else 0,
        hits=None if compared or len(counted) < len(outcomes) else sum(hit > 0 for hit in counted),
    )


def invalidation_of(history: History, outcome: Outcome, update: WeightUpdate) -> Invalidation:
    """Return why the engine promises a request that it hits nothing of other weights; NOTHING if it does not.

    `update`: the last one before the request.
    """
    if has_new_salt(history, outcome, update) and starts_clean(history, outcome):
        return Invalidation.SALT
    if not is_comparable(history, outcome):
        return Invalidation.NOTHING
    if history.policy is WeightPolicy.INVALIDATES:
        return Invalidation.UPDATE
    start, order = computing_since(outcome, history.pauses), ChangeOrder(history)
    resets = [r for r in history.resets if r.ended <= start and empties(history, update, r)]
    before = [r for r in resets if order.precedes(r, update)]
    return action_of(history, before[-1] if before else resets[0], before=bool(before))


def action_of(history: History, reset: ResetRecord, *, before: bool) -> Invalidation:
    """Return what the reset was: a pause and a sleep that clear the cache are recorded as a reset at the same time."""
    pause = next((p for p in history.pauses if p.clear and p.began == reset.began and p.ended == reset.ended), None)
    if pause is None:
        return Invalidation.RESET_BEFORE if before else Invalidation.RESET
    if pause.level is not None and pause.level > 1:
        return Invalidation.DEEP_SLEEP
    if pause.level is not None:
        return Invalidation.SLEEP_BEFORE if before else Invalidation.SLEEP_AFTER
    around, after = PAUSES[pause.mode]
    return around if before else after


class ChangeOrder:
    """The order of resets and updates. The clock of an engine that is stepped stands between two requests, so that the
    order of the workload decides between equal times.
    """

    def __init__(self, history: History) -> None:
        changes = list(enumerate(all_changes(history.workload)))
        updates = [place for place, change in changes if isinstance(change, UpdateWeights)]
        resets = [place for place, change in changes if change.clears_cache()]
        self.places = {id(u): place for u, place in zip(history.updates, updates, strict=False)}
        self.places |= {id(r): place for r, place in zip(history.resets, resets, strict=False)}

    def precedes(self, reset: ResetRecord, update: WeightUpdate) -> bool:
        """Return whether a reset ended before an update began."""
        if reset.ended == update.began and {id(reset), id(update)} <= self.places.keys():
            return self.places[id(reset)] < self.places[id(update)]
        return reset.ended <= update.began


def shares_a_block(history: History, other: Outcome, outcome: Outcome) -> bool:
    """Return whether another request computed a block of this one's prompt."""
    block = history.shape.block_size or DEFAULT_BLOCK
    return common_prefix(written_tokens(other), outcome.prompt) >= block


def could_hit_others(history: History, outcome: Outcome) -> bool:
    """Return whether other weights computed a block of the prompt before, for the same adapter."""
    own = outcome.identities[-1]
    return any(
        other.sent < outcome.sent
        and other.partition.name == outcome.partition.name
        and any(identity.weights != own.weights for identity in other.identities)
        and shares_a_block(history, other, outcome)
        for other in history.outcomes
    )
