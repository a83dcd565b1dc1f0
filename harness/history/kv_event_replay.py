"""A consumer of KV events. It replays them and records what can be hit when, and where the stream contradicts itself.

It trusts every event and repairs nothing, like a router that has only the stream. It knows no requests.

Of a second tier, an event says that a hash can be hit in another medium. What the block contains is known from the
pool: vLLM's OffloadingConnector leaves out the extra keys and, unless `self_describing_kv_events` is set, the tokens
(vllm/distributed/kv_transfer/kv_connector/v1/offloading/events.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from coldproof.adapters.protocol.kv_events import Cleared, EventBatch, Removed, Stored
from coldproof.harness.history.kv_events import HOLD_ALL, Block, BlockKey, Keys, ResidentBlock, RunEvents, blocks_of
from coldproof.harness.history.records import Outcome

POOL = (None, "GPU")  # the medium of the pool's blocks

Key = tuple[str | None, int | None, str]  # medium, group and hash


class Contradiction(msgspec.Struct, frozen=True):
    """A contradiction in the stream, and the rule that it breaks."""

    rule: str
    sentence: str


class HitSpan(msgspec.Struct):
    """The event counts after which a block could be hit in a medium, and could not be hit any more."""

    medium: str | None
    first: int
    last: float = math.inf


class EventCache:
    """What the events so far imply about the cache.

    With `forgets`, it is used for an engine's whole life: it stores neither times nor contradictions, and drops blocks
    that cannot be hit any more where layers hold all their blocks.
    """

    def __init__(
        self, before: Iterable[ResidentBlock] = (), *, expected: int | None = 0, in_pool: int = 0, forgets: bool = False
    ) -> None:
        """Start with what could be hit already, the copies in the pool and, if known, the next batch's number."""
        self.expected, self.forgets = expected, forgets
        self.blocks: dict[BlockKey, Block] = {}
        self.children: dict[tuple[int | None, str | None], list[Block]] = {}
        self.copies: Counter[Key] = Counter()
        self.media: set[str | None] = set()  # of all copies so far
        self.untold: set[BlockKey] = set()  # blocks that the pool has not described: in a tier only, as far as is known
        self.spans: dict[BlockKey, list[HitSpan]] = {}
        self.marks: list[tuple[float, int]] = []  # time of a batch, and the number of events including it
        self.faults: list[Contradiction] = []
        self.undecided: list[Stored] = []  # events whose parent this batch may still store for other layers
        self.events = self.stored = self.removed = self.cleared = 0
        self.in_pool = self.most_in_pool = 0
        for held in before:
            self.register(held.block)
            for medium, count in held.copies:
                self.add((medium, *held.block.place), count)
            if not any(medium in POOL for medium, _ in held.copies):
                self.untold.add(held.block.place)
        self.in_pool = self.most_in_pool = in_pool

    def take(self, batch: EventBatch) -> None:
        """Replay a batch."""
        if self.expected is not None and batch.sequence != self.expected:
            self.fault("gap", f"batch {batch.sequence} arrived instead of batch {self.expected}")
        self.expected = batch.sequence + 1
        for event in batch.events:
            self.events += 1
            match event:
                case Stored():
                    self.store(event)
                case Removed():
                    keys = [(event.medium, event.group, hashed) for hashed in event.hashes]
                    for key in keys:
                        self.remove(key)
                    self.note_orphans(keys)
                case Cleared():
                    self.clear()
        for event in self.undecided:
            self.check_parent(event)
        self.undecided.clear()
        if not self.forgets:
            self.marks.append((batch.at, self.events))

    def restart(self, at: float) -> None:
        """Record that another engine publishes from now on, with an empty cache. Its numbers may begin anywhere."""
        self.expected = None
        self.events += 1
        self.forget_copies(self.media)
        self.marks.append((at, self.events))

    def store(self, event: Stored) -> None:
        """Record that the blocks of an event can be hit from now on."""
        if not event.hashes:
            self.fault("empty", f"an event stores no block, but {len(event.tokens)} tokens")
            return
        in_pool = event.medium in POOL
        misshapen = len(event.tokens) != event.block_size * len(event.hashes) and (in_pool or bool(event.tokens))
        if misshapen:
            sizes = f"{len(event.tokens)} tokens for {len(event.hashes)} blocks of {event.block_size}"
            self.fault("shape", f"an event stores {sizes}, so that the tokens of each block are unknown")
        if not in_pool:
            self.store_in_tier(event)
            return
        if event.kind in HOLD_ALL:
            self.check_parent(event)
        else:
            self.undecided.append(event)
        for block in blocks_of(event):
            if not misshapen:
                self.register(block)
            elif block.place not in self.blocks:  # its tokens are not known, and contradict no other event
                self.register(block)
                self.untold.add(block.place)
            self.add((event.medium, *block.place), 1)
            self.stored += 1

    def store_in_tier(self, event: Stored) -> None:
        """Record copies in another medium. What the event says of a block must be what the pool's event said of it.

        A tier may keep a block without the one before it, and may store it after the pool has evicted that one.
        """
        for block in blocks_of(event):
            known = self.blocks.get(block.place)
            if known is None:
                self.register(block)
                self.untold.add(block.place)
            elif block.tokens and block.place not in self.untold and not same_content(known, block):
                self.fault("collision", f"hash {block.hash} identifies two blocks: {known}; and in a tier {block}")
            self.add((event.medium, *block.place), 1)
            self.stored += 1

    def check_parent(self, event: Stored) -> None:
        """Record a contradiction if the parent of an event's first block can never be hit."""
        if event.parent is not None and not self.has_parent(event):
            self.fault("parent", f"block {event.hashes[0]} is stored after {event.parent}, which cannot be hit")

    def has_parent(self, event: Stored) -> bool:
        """Return whether the parent of the first block can be hit or, where layers discard blocks, ever could be.

        Where layers discard blocks, it may be one that the batch stores for other layers behind this event, which the
        batch as a whole shows. Where no layers hold all blocks, it may be one that none ever kept: vLLM names it on
        purpose (vllm PR#30544).
        """
        parent = event.parent or ""
        if event.kind in HOLD_ALL:
            return any(self.copies[medium, event.group, parent] for medium in {event.medium, *POOL})
        known = any((group, parent) in self.blocks for group in {group for group, _ in self.blocks})
        return known or all(block.kind not in HOLD_ALL for block in self.blocks.values())

    def register(self, block: Block) -> None:
        """Record which block a hash identifies."""
        if block.place in self.untold:
            self.untold.remove(block.place)
            self.forget_block(self.blocks[block.place])
        known = self.blocks.get(block.place)
        if known is None:
            self.blocks[block.place] = block
            self.children.setdefault((block.group, block.parent), []).append(block)
        elif known != block:
            self.fault("collision", f"hash {block.hash} identifies two blocks: {known}; and {block}")

    def add(self, key: Key, count: int) -> None:
        """Add copies of a block."""
        if count and not self.copies[key] and not self.forgets:
            self.spans.setdefault(key[1:], []).append(HitSpan(key[0], self.events))
        self.copies[key] += count
        self.media.add(key[0])
        if key[0] in POOL:
            self.in_pool += count
            self.most_in_pool = max(self.most_in_pool, self.in_pool)

    def remove(self, key: Key) -> None:
        """Remove one copy of a block."""
        self.removed += 1
        if not self.copies[key]:
            self.fault("removed", f"block {key[2]} is removed, but no copy of it exists")
            return
        self.copies[key] -= 1
        self.in_pool -= key[0] in POOL
        if not self.copies[key]:
            self.end(key)

    def note_orphans(self, evicted: Iterable[Key]) -> None:
        """Record a contradiction for a block that stays in the pool after the one before it: it can never be hit."""
        for medium, group, hashed in evicted:
            if self.forgets or medium not in POOL or self.copies[medium, group, hashed]:
                continue
            children = (child for child in self.children.get((group, hashed), ()) if child.kind in HOLD_ALL)
            orphan = next((child.hash for child in children if self.copies[medium, *child.place]), None)
            if orphan is not None:
                self.fault("evicted", f"block {hashed} is evicted before block {orphan}, which follows it")

    def clear(self) -> None:
        """Record that nothing in the pool can be hit any more. The event names no medium, and a tier may be kept."""
        self.cleared += 1
        self.forget_copies(POOL)

    def forget_copies(self, media: Collection[str | None]) -> None:
        """Record that no copy of any block is left in these media, which include the pool."""
        self.in_pool = 0
        for key in [key for key, count in self.copies.items() if count and key[0] in media]:
            self.end(key)

    def end(self, key: Key) -> None:
        """Record that a block has no copy left."""
        del self.copies[key]
        for span in self.spans.get(key[1:], ()):
            if span.medium == key[0] and span.last == math.inf:
                span.last = self.events
        block = self.blocks.get(key[1:])
        if block is None or not self.forgets or block.kind not in HOLD_ALL:
            return
        if not any(self.copies.get((medium, *block.place)) for medium in self.media):
            self.untold.discard(block.place)
            self.forget_block(block)

    def forget_block(self, block: Block) -> None:
        """Record that it is no longer known what a hash identifies."""
        del self.blocks[block.place]
        self.children[block.group, block.parent].remove(block)

    def fault(self, rule: str, sentence: str) -> None:
        """Record a contradiction."""
        if not self.forgets:
            self.faults.append(Contradiction(rule, sentence))

    def count_at(self, moment: float) -> int:
        """Return how many events had been published by then."""
        return max((count for at, count in self.marks if at <= moment), default=0)

    def could_be_hit(self, place: BlockKey, first: int, last: int) -> bool:
        """Return whether a block could be hit at some time between two event counts."""
        return any(span.first <= last and span.last > first for span in self.spans.get(place, ()))

    def could_always_be_hit(self, place: BlockKey, first: int, last: int) -> bool:
        """Return whether a block could be hit in the pool all the time between two event counts.

        What a tier loses without an event, as at a reset, is not known.
        """
        spans = (span for span in self.spans.get(place, ()) if span.medium in POOL)
        return any(span.first <= first and span.last > last for span in spans)

    def spans_of(self, group: int | None, prompt: tuple[int, ...], keys: Keys) -> Iterator[tuple[int, list[Block]]]:
        """Yield a prompt's known blocks with these keys, each behind where it begins, from the first token on.

        Several blocks have the same tokens if events distinguish them only by hash. Where hits may end inside a block,
        a part of it begins where it does, and has a length of its own.
        """
        parents: dict[int, list[str | None]] = {0: [None]}
        while parents:
            begin = min(parents)
            found: dict[int, list[Block]] = {}
            for block in (child for parent in parents.pop(begin) for child in self.children.get((group, parent), ())):
                end = begin + len(block.tokens)
                same_keys = (block.lora_name, block.extra_keys) == (keys.lora_name, keys.at(begin))
                if block.tokens and same_keys and block.tokens == prompt[begin:end]:
                    found.setdefault(end, []).append(block)
            for end, blocks in found.items():
                yield begin, blocks
                parents.setdefault(end, []).extend(block.hash for block in blocks)

    def blocks_up_to(self, group: int | None, last: str | None) -> tuple[Block, ...] | None:
        """Return the blocks from a prompt's start up to this one; None if one of them is unknown."""
        found: list[Block] = []
        while last is not None:
            block = self.blocks.get((group, last))
            if block is None or not block.tokens or len(found) > len(self.blocks):
                return None
            found.append(block)
            last = block.parent
        return tuple(reversed(found))

    def held(self, places: Iterable[BlockKey]) -> Iterator[ResidentBlock]:
        """Yield the known blocks of these places, with the copies that can be hit."""
        media = sorted(self.media, key=str)
        for place in places:
            if place in self.blocks:
                copies = ((medium, self.copies.get((medium, *place), 0)) for medium in media)
                yield ResidentBlock(self.blocks[place], tuple((medium, count) for medium, count in copies if count))


def same_content(known: Block, told: Block) -> bool:
    """Return whether two descriptions of a block agree, but for the extra keys, which a tier's events leave out."""
    return (known.parent, known.tokens, known.lora_name) == (told.parent, told.tokens, told.lora_name)


def replay(events: RunEvents, until: float = math.inf) -> EventCache:
    """Replay the events of a run up to a time. Whoever replays them knows when the engine was restarted."""
    cache = EventCache(events.before, expected=events.expected, in_pool=events.in_pool)
    restarts = [one for one in events.restarts if one.at <= until]
    for number, batch in enumerate(events.batches):
        while restarts and restarts[0].batches <= number:
            cache.restart(restarts.pop(0).at)
        if batch.at <= until:
            cache.take(batch)
    for left in restarts:
        cache.restart(left.at)
    return cache


def request_keys(outcome: Outcome) -> Keys:
    """Return what the key of a request's blocks contains, as events spell it: the adapter's name, not its content."""
    named = outcome.partition.name is not None
    return Keys(outcome.model if named else None, outcome.partition.salt)
