"""KV events: what an engine publishes about its cache, in numbered batches of stored and removed blocks.

An adapter passes on what a subscriber receives and repairs nothing: a gap in the numbers remains a gap. Hashes are
always written in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

INTEGER_DIGITS = 16  # a hash that is published as an integer is its last 64 bits


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stored"):
    """Consecutive blocks that can be hit from now on.

    `parent`: the block before the first one, None at the start of a prompt. `extra_keys`: the other inputs of each
    block's hash. `group`: the KV-cache group of the blocks. `kind`: the attention type of the group's layers.
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
    """Blocks of which one copy each was removed."""

    hashes: tuple[str, ...]
    medium: str | None = None
    group: int | None = None


class Cleared(msgspec.Struct, frozen=True, tag="cleared"):
    """The whole cache was cleared."""


KvEvent = Stored | Removed | Cleared


class EventBatch(msgspec.Struct, frozen=True):
    """Events that were published together. `sequence`: the batch's number. `at`: engine clock, in seconds."""

    sequence: int
    at: float
    events: tuple[KvEvent, ...]


class HashRule(msgspec.Struct, frozen=True):
    """How block hashes are computed: the algorithm's name in the engine's configuration, and the seed of the root."""

    algorithm: str
    seed: str


ALGORITHM = "cache.prefix_caching_hash_algo"  # the key of the algorithm in `Engine.config`


def hash_rule(config: Mapping[str, str], seed: str | None) -> HashRule | None:
    """Return the hash rule, or None if the algorithm or the seed is unknown."""
    algorithm = config.get(ALGORITHM)
    return None if algorithm is None or seed is None else HashRule(algorithm, seed)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The batches since the last call. `rule`: None if the hashes cannot be recomputed outside of the engine.
    `slack`: the possible error of the batches' times, in seconds.
    """

    batches: tuple[EventBatch, ...] = ()
    rule: HashRule | None = None
    slack: float = 0.0


class EventFormatError(ValueError):
    """A published message is not a batch of events in a known format."""


def read_batch(payload: bytes) -> tuple[float, tuple[KvEvent, ...]]:
    """Return the time stamp and the events of a batch in vLLM's format (vllm/distributed/kv_events.py).

    Raises EventFormatError for any other format.
    """
    try:
        stamp, events, *_ = msgspec.msgpack.decode(payload)
        return float(stamp), tuple(read_event(fields) for fields in events)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise EventFormatError(f"not a batch of KV events: {type(problem).__name__}: {problem}") from problem


def read_event(fields: dict[str, Any]) -> KvEvent:
    """Return one event. Raises EventFormatError for an unknown type."""
    match fields["type"]:
        case "BlockStored":
            parent = fields["parent_block_hash"]
            return Stored(
                hashes=tuple(map(hexadecimal, fields["block_hashes"])),
                parent=None if parent is None else hexadecimal(parent),
                tokens=tuple(fields["token_ids"]),
                block_size=fields["block_size"],
                lora_name=fields.get("lora_name"),
                lora_id=fields.get("lora_id"),
                extra_keys=tuple(tuple(map(as_text, keys or ())) for keys in fields.get("extra_keys") or ()),
                medium=fields.get("medium"),
                group=fields.get("group_idx"),
                kind=fields.get("kv_cache_spec_kind"),
            )
        case "BlockRemoved":
            hashes = tuple(map(hexadecimal, fields["block_hashes"]))
            return Removed(hashes=hashes, medium=fields.get("medium"), group=fields.get("group_idx"))
        case "AllBlocksCleared":
            return Cleared()
        case other:
            raise EventFormatError(f"a KV event has the unknown type {other!r}")


def hexadecimal(value: int | bytes) -> str:
    """Return a hash in hexadecimal."""
    return value.hex() if isinstance(value, bytes) else f"{value:0{INTEGER_DIGITS}x}"


def as_text(value: object) -> str:
    """Return an extra key of a hash as text."""
    return value if isinstance(value, str) else repr(value)
