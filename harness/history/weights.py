"""What follows from the updates of the weights in a history: whose weights a request used, and what it was promised.

An answer after an update is compared with a cold one only where the engine promises that it uses nothing old: by its
policy (`History.policy`), or because the request's salt is newer than the update. What the encoder computed of images
is in a cache without salts, which has a reset of its own: a request with images needs that as well. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import WeightPolicy
from coldproof.harness.history.images import has_images
from coldproof.harness.history.records import (
    History,
    Identity,
    Outcome,
    PauseRecord,
    ResetRecord,
    WeightUpdate,
)

CLOCK_ERROR = 1e-6  # times are rounded to microseconds


class Cut(msgspec.Struct, frozen=True):
    """A place at which an answer goes on with other weights: after `low` to `high` of its tokens.

    `clear`: all KV of the request was discarded there, so that the rest follows from the tokens and the new weights.
    """

    low: int
    high: int
    weights: str | None
    clear: bool


def acknowledged(updates: Sequence[WeightUpdate]) -> list[WeightUpdate]:
    """Return the updates that the engine confirmed."""
    return [update for update in updates if update.error is None]


def computing_since(outcome: Outcome, pauses: Sequence[PauseRecord]) -> float:
    """Return the earliest time at which the engine can compute a request: what is sent during a pause waits for it."""
    start = outcome.sent
    for pause in pauses:
        if pause.error is None and pause.ended <= start and (pause.resumed is None or start < pause.resumed):
            start = math.inf if pause.resumed is None else pause.resumed
    return start


def with_weights(outcome: Outcome, updates: Sequence[WeightUpdate], pauses: Sequence[PauseRecord]) -> Outcome:
    """Return an outcome with the identities for all weights that the engine may have used for it."""
    made = acknowledged(updates)
    if not made:
        return outcome
    start = computing_since(outcome, pauses)
    before = [update for update in made if update.ended <= start]
    during = [update for update in made if update.ended > start and update.began < outcome.finished]
    versions = [before[-1].weights if before else None, *(update.weights for update in during)]
    own = dict.fromkeys((identity.adapter, identity.salt) for identity in outcome.identities)
    identities = dict.fromkeys(Identity(adapter, salt, weights) for weights in versions for adapter, salt in own)
    of = outcome.partition
    return msgspec.structs.replace(
        outcome,
        identities=tuple(identities),
        partition=msgspec.structs.replace(of, updates=len(before)),
    )


def updates_during(history: History, outcome: Outcome) -> list[WeightUpdate]:
    """Return the updates that a request was in flight over."""
    start = computing_since(outcome, history.pauses)
    made = acknowledged(history.updates)
    return [update for update in made if update.ended > start and update.began < outcome.finished]


def latest_update(history: History, before: float) -> WeightUpdate | None:
    """Return the last update that was confirmed until a time; None without one."""
    return next((u for u in reversed(acknowledged(history.updates)) if u.ended <= before), None)


def starts_clean(history: History, outcome: Outcome) -> bool:
    """Return whether the engine promises that a request finds nothing that was computed with other weights."""
    start = computing_since(outcome, history.pauses)
    update = latest_update(history, start)
    if update is None or history.policy is WeightPolicy.INVALIDATES:
        return True
    if history.policy is WeightPolicy.IN_SALT:
        return has_new_salt(history, outcome, update)
    changes: list[WeightUpdate | ResetRecord] = [update]
    if has_images(outcome):
        encoder = encoder_reset(history, update, start)
        if encoder is None:
            return False
        changes.append(encoder)  # what was computed before it may be wrong in the prefix cache, too
    return all(has_new_salt(history, outcome, change) for change in changes) or any(
        reset.ended <= start and all(empties(history, change, reset) for change in changes) for reset in history.resets
    )


def encoder_reset(history: History, update: WeightUpdate, start: float) -> ResetRecord | None:
    """Return the first reset until a time that left nothing of other weights in the encoder cache; None without one."""
    found = [
        reset
        for reset in (*history.resets, *history.side_resets)
        if ResetScope.ENCODER in reset.scope and reset.ended <= start and empties(history, update, reset)
    ]
    return min(found, key=lambda reset: reset.ended, default=None)


def empties(history: History, change: WeightUpdate | ResetRecord, reset: ResetRecord) -> bool:
    """Return whether a reset leaves nothing of before a change in what it covers. Both may be the same reset."""
    return reset.success and (reset is change or reset.began >= change.ended or was_empty(history, change, reset))


def has_new_salt(history: History, outcome: Outcome, change: WeightUpdate | ResetRecord) -> bool:
    """Return whether no request used this request's salt before a change ended."""
    salt = outcome.partition.salt
    return salt is not None and not any(
        o.partition.salt == salt and o.sent < change.ended and o.request != outcome.request for o in history.outcomes
    )


def was_empty(history: History, change: WeightUpdate | ResetRecord, reset: ResetRecord) -> bool:
    """Return whether the cache was still empty at a change after this reset: paused since, or no request computed."""
    if reset.ended > change.began:
        return False
    if any(p.contains(reset.ended) and p.contains(change.ended) for p in history.pauses):
        return True
    return not any(o.sent < change.began and o.finished > reset.began for o in history.outcomes)


def is_comparable(history: History, outcome: Outcome) -> bool:
    """Return whether a request has one cold answer: it started clean, and no update overlapped it."""
    if not history.updates:
        return True
    return not updates_during(history, outcome) and starts_clean(history, outcome)


def cuts(history: History, outcome: Outcome) -> list[Cut]:
    """Return where an answer goes on with other weights, in order: one cut for each update that it was in flight over.

    A client may read tokens late, so the place is known as a range: from what it had read before the pause or update
    began to what it had read when the engine went on.
    """
    return [cut_at(history, outcome, update) for update in updates_during(history, outcome)]


def cut_at(history: History, outcome: Outcome, update: WeightUpdate) -> Cut:
    """Return the cut of one update."""
    pause = next((p for p in history.pauses if p.contains(update.began)), None)
    began = update.began if pause is None else pause.began
    ended = update.ended if pause is None else (pause.running or math.inf)
    clear = any(r.success and r.began >= outcome.sent and was_empty(history, update, r) for r in history.resets)
    low, high = tokens_until(outcome, began), tokens_until(outcome, ended)
    late = 0 if low == high and began == ended else 1
    return Cut(low, min(high + late, len(outcome.tokens)), update.weights, clear)


def tokens_until(outcome: Outcome, at: float) -> int:
    """Return how many tokens of an answer its client had read at a time."""
    return sum(outcome.sent + token.at <= at + CLOCK_ERROR for token in outcome.tokens)
