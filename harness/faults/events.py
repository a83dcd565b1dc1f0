"""What is published about the cache. The cache itself stays right: only a subscriber is misled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from adapters.inproc_events import Mailbox
from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, blocks_of, manager, module, pool, scheduler

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

    def emit(_original: Any, held: Any, hashes: Any) -> None:
        if hashes and held.enable_kv_cache_events:
            acted()

    around(patch, pool(), "_emit_block_removed_events", emit)


@fault("EVENT-2", stands_for="vllm PR#44103", cells=("events-tight",))
def evictions_are_told_of_another_block(patch: Patch) -> None:
    """What is removed is said under the hash without its group."""
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
            if gone:
                acted()
            held._emit_block_removed_events(gone)

    around(patch, pool(), "free_blocks", free)


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",))
def every_third_store_is_not_told(patch: Patch) -> None:
    """Blocks can be hit that no event speaks of."""
    count = itertools.count(1)
    changed(patch, "BlockStored", lambda e: None if next(count) % 3 == 0 else e)


@fault("EVENT-1", stands_for="vllm#58119", cells=("events",))
def blocks_stand_behind_nothing(patch: Patch) -> None:
    """A later block's parent is left out."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, parent_block_hash=None))


@fault("EVENT-1", stands_for="ascend#12002", cells=("events",))
def blocks_stand_behind_themselves(patch: Patch) -> None:
    """A block's parent is said to be the block."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, parent_block_hash=e.block_hashes[0]))


@fault("EVENT-1", stands_for="vllm#44451", cells=("events",))
def tokens_of_the_wrong_place(patch: Patch) -> None:
    """An event's tokens begin one too late."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, token_ids=[*e.token_ids[1:], e.token_ids[0]]))


@fault("EVENT-1", stands_for="vllm#44451", cells=("events",))
def tokens_of_more_than_the_blocks(patch: Patch) -> None:
    """An event's tokens span more than its blocks."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, token_ids=[*e.token_ids, 5]))


@fault("EVENT-1", stands_for="sglang#24568", cells=("events",))
def salts_are_not_told(patch: Patch) -> None:
    """Tenants' blocks look alike."""

    def keys(original: Any, extra: Any) -> Any:
        told = original(extra)
        untold = original([tuple(key for key in keys or () if key[0] != "cache_salt") or None for keys in extra or ()])
        if told != untold:
            acted()
        return untold

    around(patch, module("v1.core.block_pool"), "to_event_extra_keys", keys)


@fault("EVENT-1", stands_for="llmd-router#1389", cells=("events",))
def adapters_are_not_told(patch: Patch) -> None:
    """An adapter's blocks pass for the base model's."""
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
            acted()
            mail._count = 1
        else:
            original(mail, batch)

    around(patch, Mailbox, "publish", publish)


@fault("EVENT-3", stands_for="llmd-router#1389", cells=("events",))
def hashes_of_something_else(patch: Patch) -> None:
    """All that is published is consistent, and no hash is the one of its fields."""

    def convert(original: Any, hashed: Any) -> Any:
        acted()
        return original(hashed) ^ 1

    around(patch, module("v1.core.block_pool"), "maybe_convert_block_hash", convert)


@fault("EVENT-2", stands_for="llmd-kv#372", cells=("events-tight",))
def evictions_are_told_twice(patch: Patch) -> None:
    """A block that is evicted is said to be removed, and again."""
    changed(patch, "BlockRemoved", lambda e: msgspec.structs.replace(e, block_hashes=e.block_hashes * 2))


@fault("EVENT-2", stands_for="dynamo#14796", cells=("events-tight",))
def hits_are_told_as_stores(patch: Patch) -> None:
    """Blocks that are hit are said to be stored once more, with no copy made of them."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        if count and held.enable_kv_cache_events:
            acted()
            held.coordinator.emit_cached_block_events(request, blocks.blocks)
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)


@fault("EVENT-4", stands_for="vllm PR#44103, llmd-kv#372", cells=("events-window",))
def groups_are_not_told(patch: Patch) -> None:
    """Blocks of all groups are said to be of no group."""

    def take(original: Any, held: Any) -> list[Any]:
        events: list[Any] = original(held)
        for event in events:
            if getattr(event, "group_idx", None) is not None:
                acted()
                event.group_idx = None
        return events

    around(patch, manager(), "take_events", take)


@fault("EVENT-4", stands_for="vllm PR#43258", cells=("events-window",))
def only_the_first_group_is_told(patch: Patch) -> None:
    """What other groups than the first store is not said."""
    changed(patch, "BlockStored", lambda e: None if e.group_idx else e)


@fault("EVENT-1", stands_for="vllm PR#44103", cells=("events",))
def blocks_are_said_to_be_twice_as_long(patch: Patch) -> None:
    """The block size of an event is that of another group."""
    changed(patch, "BlockStored", lambda e: msgspec.structs.replace(e, block_size=2 * e.block_size))


@fault("EVENT-1", stands_for="ascend#12002", cells=("events",), rare="prompts of which several blocks lay cached")
def blocks_behind_a_hit_stand_behind_its_first_block(patch: Patch) -> None:
    """Where several blocks of a prompt lay cached, its next ones are said to stand behind the first of these."""

    def build(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        event = original(held, request, *rest, **named)
        hit = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
        if hit > event.block_size and named["start_token_idx"] == hit:
            acted()
            event.parent_block_hash = module("v1.core.block_pool").maybe_convert_block_hash(request.block_hashes[0])
        return event

    around(patch, pool(), "_build_block_stored_event", build)


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",), rare="every fiftieth event")
def every_fiftieth_event_is_lost(patch: Patch) -> None:
    """Each fiftieth event never gets into its batch."""
    count = itertools.count(1)

    def take(original: Any, held: Any) -> list[Any]:
        events = original(held)
        kept = [event for event in events if next(count) % 50]
        if kept != events:
            acted()
        return kept

    around(patch, manager(), "take_events", take)


@fault("EVENT-2", stands_for="dynamo#14796", cells=("events-tight",), rare="after an abort")
def blocks_of_the_aborted_are_told_as_removed(patch: Patch) -> None:
    """What an aborted request has stored is said to be removed, and can still be hit."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        keeper = held.kv_cache_manager
        for name in [names] if isinstance(names, str) else list(names or ()):
            request = held.requests.get(name)
            if request is not None and status.name == "FINISHED_ABORTED" and keeper.enable_kv_cache_events:
                stored = [block.block_hash for block in blocks_of(keeper, request) if block.block_hash is not None]
                if stored:
                    acted()
                keeper.block_pool._emit_block_removed_events(stored)
        return original(held, names, status)

    around(patch, scheduler(), "finish_requests", finish)


@fault("EVENT-1", stands_for="llmd-kv#167", cells=("events",))
def adapters_are_told_by_number(patch: Patch) -> None:
    """An event has an adapter's number in the place of its name."""
    changed(
        patch,
        "BlockStored",
        lambda e: e if e.lora_name is None else msgspec.structs.replace(e, lora_name=str(e.lora_id)),
    )


@fault("EVENT-2", stands_for="dynamo PR#10666", cells=("events-tight",), rare="several events in one step")
def events_of_a_step_are_told_backwards(patch: Patch) -> None:
    """The last event of a step is the first of its batch."""

    def take(original: Any, held: Any) -> list[Any]:
        events: list[Any] = original(held)
        if len(events) > 1:
            acted()
        return events[::-1]

    around(patch, manager(), "take_events", take)


@fault("EVENT-1", stands_for="omni#6739", cells=("events",), rare="a reset while requests run")
def refused_resets_are_told(patch: Patch) -> None:
    """A reset that failed is said to have cleared everything."""

    def reset(original: Any, held: Any) -> bool:
        done = bool(original(held))
        if not done and held.enable_kv_cache_events:
            acted()
            held.kv_event_queue.append(module("distributed.kv_events").AllBlocksCleared())
        return done

    around(patch, pool(), "reset_prefix_cache", reset)


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",), rare="blocks that a request stores in its last step")
def events_are_told_a_step_late(patch: Patch) -> None:
    """What happens in a step is published after the next one."""
    waiting: dict[int, list[Any]] = {}

    def take(original: Any, held: Any) -> list[Any]:
        events = original(held)
        late, waiting[id(held)] = waiting.get(id(held), []), events
        if late != events:
            acted()
        return late

    around(patch, manager(), "take_events", take)
