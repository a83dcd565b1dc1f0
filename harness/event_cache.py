"""An executable consumer of KV events: replays them and tells what can be hit, when, and where the stream contradicts
itself.

It believes every event and repairs nothing, as a router would that has only the stream. Pure; knows no requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from adapters.kv_events import Cleared, EventBatch, Removed, Stored
from harness.event_blocks import HOLD_ALL, Block, Held, Keys, Place, blocks_of

POOL = (None, "GPU")  # the medium that the pool's blocks are in

Key = tuple[str | None, int | None, str]  # medium, group and hash


class Fault(msgspec.Struct, frozen=True):
    """Where the stream contradicts itself, and what rule it breaks."""

    rule: str
    sentence: str


class Span(msgspec.Struct):
    """After which event a block could be hit in a medium, and after which not any more."""

    medium: str | None
    first: int
    last: float = math.inf


class EventCache:
    """What follows from the events so far. One that `forgets` is for an engine's whole life: it keeps neither times nor
    faults nor, where layers hold all their blocks, what can be hit no more."""

    def __init__(
        self, before: Iterable[Held] = (), *, expected: int | None = 0, in_pool: int = 0, forgets: bool = False
    ) -> None:
        """`before`, `in_pool`: what could be hit already, and how much. `expected`: the next batch, if it is known."""
        self.expected, self.forgets = expected, forgets
        self.blocks: dict[Place, Block] = {}
        self.children: dict[tuple[int | None, str | None], list[Block]] = {}
        self.copies: Counter[Key] = Counter()
        self.spans: dict[Place, list[Span]] = {}
        self.marks: list[tuple[float, int]] = []  # when a batch came, and how many events there were with it
        self.faults: list[Fault] = []
        self.events = self.stored = self.removed = self.cleared = 0
        self.in_pool = self.most_in_pool = 0
        for held in before:
            self.learn(held.block)
            for medium, count in held.copies:
                self.add((medium, *held.block.place), count)
        self.in_pool = self.most_in_pool = in_pool

    def take(self, batch: EventBatch) -> None:
        """Replay a batch."""
        if self.expected is not None and batch.sequence != self.expected:
            self.fault("gap", f"batch {batch.sequence} came where batch {self.expected} was due")
        self.expected = batch.sequence + 1
        for event in batch.events:
            self.events += 1
            match event:
                case Stored():
                    self.store(event)
                case Removed():
                    for hashed in event.hashes:
                        self.remove((event.medium, event.group, hashed))
                case Cleared():
                    self.clear()
        if not self.forgets:
            self.marks.append((batch.at, self.events))

    def store(self, event: Stored) -> None:
        """Blocks that can be hit from now on."""
        if not event.hashes:
            self.fault("empty", f"an event stores no block at all, with {len(event.tokens)} tokens")
            return
        if len(event.tokens) != event.block_size * len(event.hashes):
            said = f"{len(event.tokens)} tokens for {len(event.hashes)} blocks of {event.block_size}"
            self.fault("shape", f"an event stores {said}: which are whose?")
        if event.parent is not None and not self.has_parent(event):
            self.fault("parent", f"block {event.hashes[0]} is stored behind {event.parent}, which cannot be hit")
        for block in blocks_of(event):
            self.learn(block)
            self.add((event.medium, *block.place), 1)
            self.stored += 1

    def has_parent(self, event: Stored) -> bool:
        """Whether the block before the first one can be hit or, where layers let go of blocks, ever could be."""
        parent = event.parent or ""
        if event.kind in HOLD_ALL:
            return any(self.copies[medium, event.group, parent] for medium in {event.medium, *POOL})
        return any((group, parent) in self.blocks for group in {group for group, _ in self.blocks})

    def learn(self, block: Block) -> None:
        """Remember what a hash stands for."""
        known = self.blocks.get(block.place)
        if known is None:
            self.blocks[block.place] = block
            self.children.setdefault((block.group, block.parent), []).append(block)
        elif known != block:
            self.fault("collision", f"hash {block.hash} stands for two blocks: {known}; and {block}")

    def add(self, key: Key, count: int) -> None:
        """More copies of a block."""
        if count and not self.copies[key] and not self.forgets:
            self.spans.setdefault(key[1:], []).append(Span(key[0], self.events))
        self.copies[key] += count
        if key[0] in POOL:
            self.in_pool += count
            self.most_in_pool = max(self.most_in_pool, self.in_pool)

    def remove(self, key: Key) -> None:
        """One copy less."""
        self.removed += 1
        if not self.copies[key]:
            self.fault("removed", f"block {key[2]} is removed although no copy of it is left")
            return
        self.copies[key] -= 1
        self.in_pool -= key[0] in POOL
        if not self.copies[key]:
            self.end(key)

    def clear(self) -> None:
        """Nothing can be hit any more."""
        self.cleared += 1
        self.in_pool = 0
        for key in [key for key, count in self.copies.items() if count]:
            self.end(key)

    def end(self, key: Key) -> None:
        """A block's last copy is gone."""
        del self.copies[key]
        for span in self.spans.get(key[1:], ()):
            if span.medium == key[0] and span.last == math.inf:
                span.last = self.events
        block = self.blocks[key[1:]]
        if self.forgets and block.kind in HOLD_ALL:
            del self.blocks[block.place]
            self.children[block.group, block.parent].remove(block)

    def fault(self, rule: str, sentence: str) -> None:
        """Note a contradiction."""
        if not self.forgets:
            self.faults.append(Fault(rule, sentence))

    def count_at(self, moment: float) -> int:
        """How many events had been published by then."""
        return max((count for at, count in self.marks if at <= moment), default=0)

    def sometime(self, place: Place, first: int, last: int) -> bool:
        """Whether a block could be hit at some time between two counts of events."""
        return any(span.first <= last and span.last > first for span in self.spans.get(place, ()))

    def throughout(self, place: Place, first: int, last: int) -> bool:
        """Whether it could be hit all the time between them."""
        return any(span.first <= first and span.last > last for span in self.spans.get(place, ()))

    def chain(self, group: int | None, prompt: tuple[int, ...], keys: Keys) -> Iterator[list[Block]]:
        """Known blocks for a prompt's beginning under these keys, one depth after the other; more than one where events
        tell two blocks apart by nothing but the hash."""
        parents: list[tuple[str | None, int]] = [(None, 0)]
        depth = 0
        while True:
            found = [
                (block, begin + len(block.tokens))
                for parent, begin in parents
                for block in self.children.get((group, parent), ())
                if block.tokens
                and block.tokens == prompt[begin : begin + len(block.tokens)]
                and (block.lora_name, block.extra_keys) == (keys.lora_name, keys.at(depth))
            ]
            if not found:
                return
            yield [block for block, _ in found]
            parents, depth = [(block.hash, end) for block, end in found], depth + 1

    def until(self, group: int | None, last: str | None) -> tuple[Block, ...] | None:
        """The blocks from a prompt's start up to this one; None where one of them is unknown."""
        found: list[Block] = []
        while last is not None:
            block = self.blocks.get((group, last))
            if block is None or not block.tokens or len(found) > len(self.blocks):
                return None
            found.append(block)
            last = block.parent
        return tuple(reversed(found))

    def held(self, places: Iterable[Place]) -> Iterator[Held]:
        """What is known of these places, with the copies that can be hit."""
        media = {medium for medium, _, _ in self.copies}
        for place in places:
            if place in self.blocks:
                copies = ((medium, self.copies.get((medium, *place), 0)) for medium in sorted(media, key=str))
                yield Held(self.blocks[place], tuple((medium, count) for medium, count in copies if count))
