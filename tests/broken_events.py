"""Bugs to plant in what vLLM publishes about its cache. The cache itself stays right: only a subscriber is misled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from adapters.inproc_events import Mailbox
from tests.broken_vllm import around, manager, module, pool


def changed(patch: pytest.MonkeyPatch, kind: str, change: Callable[[Any], Any]) -> None:
    """Have each event of a kind pass through a function before it is published; None: it is not."""

    def take(original: Any, held: Any) -> list[Any]:
        events = [change(e) if type(e).__name__ == kind else e for e in original(held)]
        return [event for event in events if event is not None]

    around(patch, manager(), "take_events", take)


def evictions_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """Blocks lose their hash and nobody hears of it."""
    patch.setattr(pool(), "_emit_block_removed_events", lambda *_: None)


def evictions_are_told_of_another_block(patch: pytest.MonkeyPatch) -> None:
    """What is removed is said under the hash without its group (vllm PR#44103)."""
    changed(
        patch,
        "BlockRemoved",
        lambda e: msgspec.structs.replace(e, block_hashes=[h ^ 1 for h in e.block_hashes]),
    )


def evictions_are_told_when_requests_end(patch: pytest.MonkeyPatch) -> None:
    """As if a block that is free could not be hit any more."""

    def free(original: Any, held: Any, blocks: Any) -> None:
        ordered = list(blocks)
        original(held, ordered)
        if held.enable_kv_cache_events:
            gone = [b.block_hash for b in ordered if b.ref_cnt == 0 and b.block_hash is not None]
            held._emit_block_removed_events(gone)

    around(patch, pool(), "free_blocks", free)


def every_third_store_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """Blocks can be hit that no event speaks of."""
    count = itertools.count(1)
    changed(patch, "BlockStored", lambda e: None if next(count) % 3 == 0 else e)


def blocks_stand_behind_nothing(patch: pytest.MonkeyPatch) -> None:
    """A later block's parent is left out (vllm#58119)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, parent_block_hash=None))


def blocks_stand_behind_themselves(patch: pytest.MonkeyPatch) -> None:
    """A block's parent is said to be the block."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, parent_block_hash=e.block_hashes[0]))


def tokens_of_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """An event's tokens begin one too late (vllm#44451 has them span too much)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, token_ids=[*e.token_ids[1:], e.token_ids[0]]))


def tokens_of_more_than_the_blocks(patch: pytest.MonkeyPatch) -> None:
    """An event's tokens span more than its blocks (vllm#44451)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, token_ids=[*e.token_ids, 5]))


def salts_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """Tenants' blocks look alike (sglang#24568)."""

    def keys(_original: Any, extra: Any) -> Any:
        tagged = [[key for key in keys or () if key[0] != "cache_salt"] for keys in extra or ()]
        return [tuple(key[1] for key in keys) or None for keys in tagged] or None

    around(patch, module("v1.core.block_pool"), "to_event_extra_keys", keys)


def adapters_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """An adapter's blocks pass for the base model's (llm-d-router#1389)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, lora_name=None, lora_id=None))


def resets_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """A subscriber goes on believing in what is gone."""
    changed(patch, "AllBlocksCleared", lambda _: None)


def the_first_batch_is_lost(patch: pytest.MonkeyPatch) -> None:
    """It is numbered and never sent, as when nobody listens yet, and no replay makes up for it."""

    def publish(original: Any, mail: Any, batch: Any) -> None:
        if mail._count == 0:
            mail._count = 1
        else:
            original(mail, batch)

    around(patch, Mailbox, "publish", publish)


def hashes_of_something_else(patch: pytest.MonkeyPatch) -> None:
    """All that is published is consistent, and no hash is the one of its fields."""
    around(
        patch, module("v1.core.block_pool"), "maybe_convert_block_hash", lambda original, hashed: original(hashed) ^ 1
    )
