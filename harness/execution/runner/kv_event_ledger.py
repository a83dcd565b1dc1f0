"""Replays an engine's KV events over all of its runs, and extracts for each history the events and blocks it needs.

A run may remove blocks that earlier runs stored, so that its own events are not sufficient to understand them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from coldproof.adapters.protocol.kv_events import EventBatch, Published, Removed, Stored
from coldproof.harness.history.kv_event_replay import EventCache, request_keys
from coldproof.harness.history.kv_events import BlockKey, EngineRestart, RunEvents
from coldproof.harness.history.records import Outcome


class RunBatches:
    """The batches that the engines of one run have published so far, with times since the run began."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []
        self.restarts: list[EngineRestart] = []

    def add(self, published: Published, *, began: float) -> None:
        """Add the batches of the current engine. `began`: the start of the run on its clock."""
        self.batches += (msgspec.structs.replace(b, at=round(b.at - began, 6)) for b in published.batches)

    def note_restart(self, at: float) -> None:
        """Record that another engine publishes from now on."""
        self.restarts.append(EngineRestart(len(self.batches), at))


class EventLedger:
    """The KV events of one engine."""

    def __init__(self) -> None:
        self.cache = EventCache(forgets=True)

    def follow(self, batches: Iterable[EventBatch]) -> None:
        """Replay these batches."""
        for batch in batches:
            self.cache.take(batch)

    def record(self, published: Published, outcomes: Iterable[Outcome], run: RunBatches) -> RunEvents:
        """Replay and return a run's events. `published`: the last of them, which `run` has already."""
        batches = tuple(run.batches)
        places = dict.fromkeys([*self.mentioned(batches), *self.hittable(outcomes)])
        events = RunEvents(
            batches=batches,
            expected=self.cache.expected,
            before=tuple(self.cache.held(places)),
            in_pool=self.cache.in_pool,
            rule=published.rule,
            slack=published.slack,
            restarts=tuple(run.restarts),
        )
        self.follow(batches)
        return events

    def mentioned(self, batches: Iterable[EventBatch]) -> Iterator[BlockKey]:
        """Yield the blocks that events name, and their chains of parents."""
        groups = {group for group, _ in self.cache.blocks}
        for event in (event for batch in batches for event in batch.events):
            if isinstance(event, Stored | Removed):
                parents = [event.parent] if isinstance(event, Stored) and event.parent is not None else []
                for hashed in (*event.hashes, *parents):
                    for group in groups:
                        yield from (block.place for block in self.cache.blocks_up_to(group, hashed) or ())
                        yield group, hashed

    def hittable(self, outcomes: Iterable[Outcome]) -> Iterator[BlockKey]:
        """Yield the blocks that requests may hit."""
        groups = {group for group, _ in self.cache.blocks}
        for outcome in outcomes:
            for group in groups:
                for _, blocks in self.cache.spans_of(group, outcome.prompt, request_keys(outcome)):
                    yield from (block.place for block in blocks)
