"""What the events of a run are about: blocks as a subscriber knows them, and the stream as a history keeps it.

Frozen data, JSON in and out.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from adapters.kv_events import EventBatch, HashRule, Stored

# Layers that read everything before them: a running request holds all of its blocks. Others let go of what is behind
# them, so that a block's parent may be gone, or have never been worth keeping.
HOLD_ALL = (None, "full_attention", "mla_attention")

Place = tuple[int | None, str]  # group and hash


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored block, by its event. `tokens` is empty where the event does not say which are whose."""

    hash: str
    parent: str | None
    tokens: tuple[int, ...]
    lora_name: str | None = None
    extra_keys: tuple[str, ...] = ()
    group: int | None = None
    kind: str | None = None

    @property
    def place(self) -> Place:
        """Where it is looked up."""
        return self.group, self.hash

    def __str__(self) -> str:
        whose = "the base model" if self.lora_name is None else repr(self.lora_name)
        keys = f" with the extra keys {', '.join(map(repr, self.extra_keys))}" if self.extra_keys else ""
        return f"tokens {', '.join(map(str, self.tokens[:4]))}, ... behind {self.parent or 'nothing'} for {whose}{keys}"


class Held(msgspec.Struct, frozen=True):
    """A block and how many copies of it can be hit, in each medium."""

    block: Block
    copies: tuple[tuple[str | None, int], ...]


class RunEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine published while a workload ran; times are seconds since the run began.

    `expected`: the first batch's number, if none was missed. `before`: what could be hit when the run began, as far as
    this run has to do with it, and `in_pool` how many copies in all.
    """

    batches: tuple[EventBatch, ...]
    expected: int | None
    before: tuple[Held, ...]
    in_pool: int
    rule: HashRule | None
    slack: float


class Keys(msgspec.Struct, frozen=True):
    """What a request's blocks are keyed by beside their tokens, as events spell it."""

    lora_name: str | None
    salt: str | None

    def at(self, depth: int) -> tuple[str, ...]:
        """The extra keys of a block so many blocks behind the first: the salt is in the first one's only."""
        names = () if self.lora_name is None else (self.lora_name,)
        return names if depth or not self.salt else (*names, self.salt)


def blocks_of(event: Stored) -> Iterator[Block]:
    """The single blocks of an event; their tokens only where it has as many as its blocks hold."""
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
