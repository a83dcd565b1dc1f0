"""Follows an engine's KV events over all the runs of its life, and cuts out for each history what it has to do with.

What earlier runs left in the pool is removed in later ones, so that a run's own events do not explain themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from adapters.kv_events import EventBatch, Published, Removed, Stored
from harness.event_blocks import Keys, Place, RunEvents
from harness.event_cache import EventCache
from harness.history import Outcome


class EventLedger:
    """One engine's."""

    def __init__(self) -> None:
        self.cache = EventCache(forgets=True)

    def pass_over(self, published: Published) -> None:
        """What was published outside any run."""
        self.follow(published.batches)

    def follow(self, batches: Iterable[EventBatch]) -> None:
        """Go on to where these batches lead."""
        for batch in batches:
            self.cache.take(batch)

    def record(self, published: Published, outcomes: Iterable[Outcome], *, began: float) -> RunEvents:
        """A run's events, for its history."""
        batches = tuple(msgspec.structs.replace(b, at=round(b.at - began, 6)) for b in published.batches)
        places = dict.fromkeys([*self.mentioned(batches), *self.asked(outcomes)])
        events = RunEvents(
            batches=batches,
            expected=self.cache.expected,
            before=tuple(self.cache.held(places)),
            in_pool=self.cache.in_pool,
            rule=published.rule,
            slack=published.slack,
        )
        self.follow(batches)
        return events

    def mentioned(self, batches: Iterable[EventBatch]) -> Iterator[Place]:
        """Blocks that events speak of, and what stands before them."""
        groups = {group for group, _ in self.cache.blocks}
        for event in (event for batch in batches for event in batch.events):
            if isinstance(event, Stored | Removed):
                parents = [event.parent] if isinstance(event, Stored) and event.parent is not None else []
                for hashed in (*event.hashes, *parents):
                    for group in groups:
                        yield from (block.place for block in self.cache.until(group, hashed) or ())
                        yield group, hashed

    def asked(self, outcomes: Iterable[Outcome]) -> Iterator[Place]:
        """Blocks that requests may hit."""
        groups = {group for group, _ in self.cache.blocks}
        for outcome in outcomes:
            for group in groups:
                for blocks in self.cache.chain(group, outcome.prompt, keys_of(outcome)):
                    yield from (block.place for block in blocks)


def keys_of(outcome: Outcome) -> Keys:
    """What a request's blocks are keyed by, as events spell it: the adapter by its name, not its content."""
    named = outcome.residence.name is not None
    return Keys(outcome.model if named else None, outcome.residence.salt)
