"""Hand-made streams of KV events, as an engine with blocks of 16 would publish them for hand-made histories."""

from __future__ import annotations

from typing import Any

import msgspec
from support.histories import BLOCK, history

from coldproof.adapters.protocol.kv_events import Cleared, EventBatch, HashRule, KvEvent, Removed, Stored
from coldproof.harness.features.events.hash_checks import block_hash, over_pickle, tagged
from coldproof.harness.history.kv_events import ResidentBlock, RunEvents
from coldproof.harness.history.records import History, Outcome

RULE = HashRule("sha256", "vllm-none-hash")
PROMPT = tuple(range(100, 140))  # two whole blocks and a half


def hashes(tokens: tuple[int, ...], lora: str | None = None, salt: str | None = None) -> list[str]:
    """Return the hashes of a prompt's whole blocks by the rule."""
    parent, made = over_pickle(RULE.seed), []
    for i in range(len(tokens) // BLOCK):
        keys = tagged(lora, extra(i, lora, salt))
        parent = block_hash(over_pickle, parent, tokens[i * BLOCK : (i + 1) * BLOCK], keys)
        made.append(parent.hex()[-16:])
    return made


def extra(block: int, lora: str | None, salt: str | None) -> tuple[str, ...]:
    """Return a block's extra keys as they are published."""
    return tuple(key for key in (lora, salt if block == 0 else None) if key is not None)


def stored(
    tokens: tuple[int, ...] = PROMPT,
    first: int = 0,
    *,
    lora: str | None = None,
    salt: str | None = None,
    **changes: Any,
) -> Stored:
    """Return the event that a prompt's whole blocks from the `first` on were stored."""
    names, count = hashes(tokens, lora, salt), len(tokens) // BLOCK
    fields: dict[str, Any] = {
        "hashes": tuple(names[first:]),
        "parent": names[first - 1] if first else None,
        "tokens": tokens[first * BLOCK : count * BLOCK],
        "block_size": BLOCK,
        "lora_name": lora,
        "extra_keys": tuple(extra(i, lora, salt) for i in range(first, count)),
        "medium": "GPU",
        "group": 0,
        "kind": "full_attention",
    }
    return Stored(**{**fields, **changes})


def removed(*names: str, **changes: Any) -> Removed:
    """Return the event that blocks of the pool were removed."""
    return Removed(**{"hashes": names, "medium": "GPU", "group": 0, **changes})


def batches(*contents: tuple[float, tuple[KvEvent, ...]], first: int = 0) -> tuple[EventBatch, ...]:
    """Return numbered batches, each with a time and its events."""
    return tuple(EventBatch(first + i, at, events) for i, (at, events) in enumerate(contents))


def events(
    *contents: tuple[float, tuple[KvEvent, ...]], before: tuple[ResidentBlock, ...] = (), **changes: Any
) -> RunEvents:
    """Return the events of a run, from the start of the engine on."""
    fields: dict[str, Any] = {"expected": 0, "in_pool": 0, "rule": RULE, "slack": 0.0}
    return RunEvents(batches=batches(*contents), before=before, **{**fields, **changes})


def history_with_events(given: RunEvents, *outcomes: Outcome, **changes: Any) -> History:
    """Return a history with these events."""
    return msgspec.structs.replace(history(*outcomes), events=given, **changes)


CLEARED = Cleared()
