"""KV events of a run: blocks as a subscriber knows them, and the stream as a history stores it. Frozen data."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.adapters.protocol.kv_events import EventBatch, HashRule, Stored

# Layers that read all earlier tokens: a running request holds all of its blocks. Other layers discard blocks, so that a
# block's parent may be evicted, or was never stored.
HOLD_ALL = (None, "full_attention", "mla_attention")

BlockKey = tuple[int | None, str]  # group and hash


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored block, as its event describes it. `tokens` is empty if the event does not assign them to blocks."""

    hash: str
    parent: str | None
    tokens: tuple[int, ...]
    lora_name: str | None = None
    extra_keys: tuple[str, ...] = ()
    group: int | None = None
    kind: str | None = None

    @property
    def place(self) -> BlockKey:
        """Return the key by which it is looked up."""
        return self.group, self.hash

    def __str__(self) -> str:
        model = "the base model" if self.lora_name is None else repr(self.lora_name)
        keys = f" with the extra keys {', '.join(map(repr, self.extra_keys))}" if self.extra_keys else ""
        return f"tokens {', '.join(map(str, self.tokens[:4]))}, ... after {self.parent or 'nothing'} for {model}{keys}"


class ResidentBlock(msgspec.Struct, frozen=True):
    """A block, and the number of its copies that can be hit in each medium."""

    block: Block
    copies: tuple[tuple[str | None, int], ...]


class EngineRestart(msgspec.Struct, frozen=True):
    """A restart of the engine: the number of batches before it, and when the last of them had been taken."""

    batches: int
    at: float


class RunEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine published while a workload ran. Times are seconds since the run began.

    `expected` is the number of the first batch, if none was missed. `before` has the blocks that could be hit when the
    run began, as far as they concern this run; `in_pool` is the number of all copies at that time.
    """

    batches: tuple[EventBatch, ...]
    expected: int | None
    before: tuple[ResidentBlock, ...]
    in_pool: int
    rule: HashRule | None
    slack: float
    restarts: tuple[EngineRestart, ...] = ()


class Keys(msgspec.Struct, frozen=True):
    """What the key of a request's blocks contains besides their tokens, as events spell it."""

    lora_name: str | None
    salt: str | None

    def at(self, begin: int) -> tuple[str, ...]:
        """Return the extra keys of the block that begins at this token. Only the first block has the salt."""
        names = () if self.lora_name is None else (self.lora_name,)
        return names if begin or not self.salt else (*names, self.salt)


def blocks_of(event: Stored) -> Iterator[Block]:
    """Yield the single blocks of an event. They have tokens only if the event has as many as its blocks hold."""
    size, parent = event.block_size, event.parent
    whole = len(event.tokens) == size * len(event.hashes)
    for i, hashed in enumerate(event.hashes):
        yield Block(
            hash=hashed,
            parent=parent,
            tokens=event.tokens[i * size : (i + 1) * size] if whole else (),
            lora_name=event.lora_name,
            extra_keys=event.extra_keys[i] if i < len(event.extra_keys) else (),
            group=event.group,
            kind=event.kind,
        )
        parent = hashed
