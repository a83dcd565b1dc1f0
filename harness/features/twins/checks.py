"""Checks that an engine does the same with each of two implementations of one part. What a request hits is compared by
the bounds of the reference cache.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import msgspec

from coldproof.adapters.protocol.kv_events import Cleared, KvEvent, Removed, Stored
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.history.twins import twins
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass


class Change(msgspec.Struct, frozen=True):
    """What a KV event says, with blocks by the order in which they were first named: hashes may be of two algorithms.

    `kind`: "stored", "removed" or "cleared". `after`: the block before the first one.
    """

    kind: str
    blocks: tuple[int, ...] = ()
    after: int | None = None
    tokens: tuple[int, ...] = ()
    where: tuple[str | None, int | None] = (None, None)  # medium and group


@check(
    "implementations",
    order=106,
    fails=(
        "With one of two implementations of one part, a request is refused, ends otherwise, is preempted more often or "
        "finds less when it resumes, or other KV events are published."
    ),
)
def check_twins(history: History) -> list[Finding]:
    """Return a finding for the first request that ended otherwise, or for the first KV event that differs."""
    for elsewhere, own in twins(history):
        here, there = ending(own), ending(elsewhere)
        if here != there:
            words = f"Request {own.request} {here}; with the other implementation, the same request {there}."
            return [finding(words, request=own.request)]
    resumed = resumed_hits(history)
    for elsewhere, own in twins(history):
        hit, best = resumed[own.request], resumed[elsewhere.request]
        if hit < best:
            found = f"Request {own.request} was preempted, and found {hit} tokens cached when it resumed"
            words = f"{found}; with the other implementation, the same request found {best}."
            return [finding(words, request=own.request, failure_class=FailureClass.LOST_REUSE)]
    sides = changes_of_each(history)
    for number, (before, after) in enumerate(itertools.zip_longest(*sides), start=1):
        if before != after:
            other = f"with the other implementation, it is {described(before)}"
            return [finding(f"KV event {number} is {described(after)}; {other}.")]
    return []


def resumed_hits(history: History) -> Counter[int]:
    """Return how many tokens requests found cached when they resumed, where the engine's steps are recorded."""
    found: Counter[int] = Counter()
    for step in history.engine_steps or ():
        for one in step.admitted:
            found[int(one.request)] += one.hit if one.resumed else 0
    return found


def finding(
    words: str, *, request: int | None = None, failure_class: FailureClass = FailureClass.ACCOUNTING
) -> Finding:
    """Return a finding of this checker."""
    return Finding(checker="implementations", failure_class=failure_class, sentence=words, request=request)


def ending(outcome: Outcome) -> str:
    """Return how a request ended, as a clause, and after how many preemptions if it was answered."""
    if outcome.refused:
        return "was refused"
    if outcome.error is not None:
        return "ended with an error"
    if outcome.aborted is not None:
        return "was aborted"
    times = outcome.preemptions or 0
    after = f" after {times} preemption{'s' * (times > 1)}" if times else ""
    return f"was answered{after}, with the finish reason {outcome.finish_reason!r}"


def changes_of_each(history: History) -> list[list[Change]]:
    """Return what the KV events of both engines say, in order; nothing where events or requests are not compared."""
    events = history.events
    if events is None or not twins(history) or len(events.restarts) != 1:
        return []
    first = events.restarts[0].batches
    parts = (events.batches[:first], events.batches[first:])
    return [changes(event for batch in part for event in batch.events) for part in parts]


def changes(events: Iterable[KvEvent]) -> list[Change]:
    """Return what events say, in order."""
    places: dict[str, int] = {}

    def place(name: str) -> int:
        return places.setdefault(name, len(places))

    found: list[Change] = []
    for event in events:
        match event:
            case Stored():
                after = None if event.parent is None else place(event.parent)
                blocks = tuple(map(place, event.hashes))
                found.append(Change("stored", blocks, after, event.tokens, (event.medium, event.group)))
            case Removed():
                blocks = tuple(map(place, event.hashes))
                found.append(Change("removed", blocks, where=(event.medium, event.group)))
            case Cleared():
                found.append(Change("cleared"))
    return found


def described(change: Change | None) -> str:
    """Return what an event says, in a few words."""
    if change is None:
        return "missing"
    if change.kind == "cleared":
        return "a reset of the cache"
    blocks = f"block{'s' * (len(change.blocks) != 1)} {', '.join(map(str, change.blocks))}"
    if change.kind == "removed":
        return f"the removal of {blocks}"
    return f"the store of {blocks} {'at the start of a prompt' if change.after is None else f'after {change.after}'}"
