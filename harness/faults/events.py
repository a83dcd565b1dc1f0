"""What is published about the cache. The cache itself stays right: only a subscriber is misled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from adapters.inproc_events import Mailbox
from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, pool

FAULTS, fault = collector("events")


def changed(patch: Patch, kind: str, change: Callable[[Any], Any]) -> None:
    """Have each event of a kind pass through a function before it is published; None: it is not."""

    def take(original: Any, held: Any) -> list[Any]:
        events = original(held)
        shown = [change(e) if type(e).__name__ == kind else e for e in events]
        if shown != events:
            acted()
        return [event for event in shown if event is not None]

    around(patch, manager(), "take_events", take)


@fault("EVENT-2", stands_for="llmd-kv#372", cells=("events-tight",))
def evictions_are_not_told(patch: Patch) -> None:
    """Blocks lose their hash and nobody hears of it."""
    patch.setattr(pool(), "_emit_block_removed_events", lambda *_: None)


@fault("EVENT-2", stands_for="vllm PR#44103", cells=("events-tight",))
def evictions_are_told_of_another_block(patch: Patch) -> None:
    """What is removed is said under the hash without its group (vllm PR#44103)."""
    changed(
        patch,
        "BlockRemoved",
        lambda e: msgspec.structs.replace(e, block_hashes=[h ^ 1 for h in e.block_hashes]),
    )


@fault("EVENT-1", stands_for="dynamo#14796", cells=("events",))
def evictions_are_told_when_requests_end(patch: Patch) -> None:
    """As if a block that is free could not be hit any more."""

    def free(original: Any, held: Any, blocks: Any) -> None:
        ordered = list(blocks)
        original(held, ordered)
        if held.enable_kv_cache_events:
            gone = [b.block_hash for b in ordered if b.ref_cnt == 0 and b.block_hash is not None]
            held._emit_block_removed_events(gone)

    around(patch, pool(), "free_blocks", free)


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",))
def every_third_store_is_not_told(patch: Patch) -> None:
    """Blocks can be hit that no event speaks of."""
    count = itertools.count(1)
    changed(patch, "BlockStored", lambda e: None if next(count) % 3 == 0 else e)


@fault("EVENT-1", stands_for="vllm#58119", cells=("events",))
def blocks_stand_behind_nothing(patch: Patch) -> None:
    """A later block's parent is left out (vllm#58119)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, parent_block_hash=None))


@fault("EVENT-1", stands_for="ascend#12002", cells=("events",))
def blocks_stand_behind_themselves(patch: Patch) -> None:
    """A block's parent is said to be the block."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, parent_block_hash=e.block_hashes[0]))


@fault("EVENT-1", stands_for="vllm#44451", cells=("events",))
def tokens_of_the_wrong_place(patch: Patch) -> None:
    """An event's tokens begin one too late (vllm#44451 has them span too much)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, token_ids=[*e.token_ids[1:], e.token_ids[0]]))


@fault("EVENT-1", stands_for="vllm#44451", cells=("events",))
def tokens_of_more_than_the_blocks(patch: Patch) -> None:
    """An event's tokens span more than its blocks (vllm#44451)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, token_ids=[*e.token_ids, 5]))


@fault("EVENT-1", stands_for="sglang#24568", cells=("events",))
def salts_are_not_told(patch: Patch) -> None:
    """Tenants' blocks look alike (sglang#24568)."""

    def keys(_original: Any, extra: Any) -> Any:
        tagged = [[key for key in keys or () if key[0] != "cache_salt"] for keys in extra or ()]
        return [tuple(key[1] for key in keys) or None for keys in tagged] or None

    around(patch, module("v1.core.block_pool"), "to_event_extra_keys", keys)


@fault("EVENT-1", stands_for="llm-d-router#1389", cells=("events",))
def adapters_are_not_told(patch: Patch) -> None:
    """An adapter's blocks pass for the base model's (llm-d-router#1389)."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, lora_name=None, lora_id=None))


@fault("EVENT-1", stands_for="vllm PR#28827's half for subscribers", cells=("events",))
def resets_are_not_told(patch: Patch) -> None:
    """A subscriber goes on believing in what is gone."""
    changed(patch, "AllBlocksCleared", lambda _: None)


@fault("EVENT-1", stands_for="llmd-kv PR#663", cells=("events",))
def the_first_batch_is_lost(patch: Patch) -> None:
    """It is numbered and never sent, as when nobody listens yet, and no replay makes up for it."""

    def publish(original: Any, mail: Any, batch: Any) -> None:
        if mail._count == 0:
            mail._count = 1
        else:
            original(mail, batch)

    around(patch, Mailbox, "publish", publish)


@fault("EVENT-3", stands_for="llmd-router#1389", cells=("events",))
def hashes_of_something_else(patch: Patch) -> None:
    """All that is published is consistent, and no hash is the one of its fields."""
    around(
        patch, module("v1.core.block_pool"), "maybe_convert_block_hash", lambda original, hashed: original(hashed) ^ 1
    )
