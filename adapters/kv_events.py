"""What an engine publishes about its cache: blocks stored and removed, in numbered batches. Plain data.

An adapter passes on what a subscriber gets and repairs nothing: a gap in the numbers stays one. Hashes are spelled in
hexadecimal, however they were published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

INTEGER_DIGITS = 16  # a hash that is published as an integer is the last 64 bits of it


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stored"):
    """Blocks that can be hit from now on, one behind the other; `parent` is the block before the first, None at a
    prompt's start. `extra_keys`: what else a block's hash was made of, a tuple for each block. `group`: of the layers
    that they are for; `kind`: what these layers read.
    """

    hashes: tuple[str, ...]
    parent: str | None
    tokens: tuple[int, ...]
    block_size: int
    lora_name: str | None = None
    lora_id: int | None = None
    extra_keys: tuple[tuple[str, ...], ...] = ()
    medium: str | None = None
    group: int | None = None
    kind: str | None = None


class Removed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="removed"):
    """Blocks of which one copy each is gone."""

    hashes: tuple[str, ...]
    medium: str | None = None
    group: int | None = None


class Cleared(msgspec.Struct, frozen=True, tag="cleared"):
    """Nothing can be hit any more."""


KvEvent = Stored | Removed | Cleared


class EventBatch(msgspec.Struct, frozen=True):
    """Events that were published together: their number, and when by the engine's clock."""

    sequence: int
    at: float
    events: tuple[KvEvent, ...]


class HashRule(msgspec.Struct, frozen=True):
    """How a block's hash is made: the algorithm by its name in the engine's configuration, and the root's seed."""

    algorithm: str
    seed: str


ALGORITHM = "cache.prefix_caching_hash_algo"  # where an engine's configuration says it


def hash_rule(config: Mapping[str, str], seed: str | None) -> HashRule | None:
    """The rule of an engine that says its algorithm, with the seed that it was given or is known to take."""
    algorithm = config.get(ALGORITHM)
    return None if algorithm is None or seed is None else HashRule(algorithm, seed)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """All that was published since it was last taken. `rule`: None where nobody outside can repeat the hashes.
    `slack`: how many seconds the batches' times may be off.
    """

    batches: tuple[EventBatch, ...] = ()
    rule: HashRule | None = None
    slack: float = 0.0


class EventFormatError(ValueError):
    """What was published is no batch of events that Coldproof knows."""


def read_batch(payload: bytes) -> tuple[float, tuple[KvEvent, ...]]:
    """A batch as vLLM packs it for its subscribers (distributed/kv_events.py): its time stamp and its events.

    Raises EventFormatError.
    """
    try:
        stamp, events, *_ = msgspec.msgpack.decode(payload)
        return float(stamp), tuple(read_event(fields) for fields in events)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise EventFormatError(f"no batch of KV events: {type(problem).__name__}: {problem}") from problem


def read_event(fields: dict[str, Any]) -> KvEvent:
    """One event; what it leaves out is unknown."""
    match fields["type"]:
        case "BlockStored":
            parent = fields["parent_block_hash"]
            return Stored(
                hashes=tuple(map(spelled, fields["block_hashes"])),
                parent=None if parent is None else spelled(parent),
                tokens=tuple(fields["token_ids"]),
                block_size=fields["block_size"],
                lora_name=fields.get("lora_name"),
                lora_id=fields.get("lora_id"),
                extra_keys=tuple(tuple(map(key, keys or ())) for keys in fields.get("extra_keys") or ()),
                medium=fields.get("medium"),
                group=fields.get("group_idx"),
                kind=fields.get("kv_cache_spec_kind"),
            )
        case "BlockRemoved":
            hashes = tuple(map(spelled, fields["block_hashes"]))
            return Removed(hashes=hashes, medium=fields.get("medium"), group=fields.get("group_idx"))
        case "AllBlocksCleared":
            return Cleared()
        case other:
            raise EventFormatError(f"an event of unknown type {other!r}")


def spelled(value: int | bytes) -> str:
    """A hash in hexadecimal."""
    return value.hex() if isinstance(value, bytes) else f"{value:0{INTEGER_DIGITS}x}"


def key(value: object) -> str:
    """A part of what a hash was made of, as text."""
    return value if isinstance(value, str) else repr(value)
