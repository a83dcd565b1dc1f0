"""Published KV events. The cache itself stays correct: only a subscriber is misled."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, find_requests, manager, module, pool, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, after_lookup, around, before
from coldproof.adapters.vllm.inproc.kv_events import EventRecorder

FAULTS, fault = collector("events")


def change_steps(patch: Patch, change: Callable[[Any, list[Any]], list[Any]]) -> None:
    """Publish `change(manager, events)` instead of the events of each step."""

    @around(patch, manager(), "take_events")
    def take(original: Any, this: Any) -> list[Any]:
        events = original(this)
        shown = change(this, events)
        if shown != events:
            acted()
        return shown


def change_events(patch: Patch, kind: str, change: Callable[[Any], Any]) -> None:
    """Publish `change(event)` instead of each event of a kind. If it is None, the event is not published."""

    def changed(_held: Any, events: list[Any]) -> list[Any]:
        shown = [change(e) if type(e).__name__ == kind else e for e in events]
        return [event for event in shown if event is not None]

    change_steps(patch, changed)


def change_stores(patch: Patch, change: Callable[[Any], dict[str, Any]]) -> None:
    """Publish each stored-block event with the fields `change(event)`."""
    change_events(patch, "BlockStored", lambda e: replace(e, **change(e)))


@fault("EVENT-2", stands_for="llmd-kv#372", cells=("events-tight",))
def evictions_are_not_reported(patch: Patch) -> None:
    """No event reports evictions."""

    @around(patch, pool(), "_emit_block_removed_events")
    def emit(_original: Any, this: Any, hashes: Any) -> None:
        if hashes and this.enable_kv_cache_events:
            acted()


@fault("EVENT-2", stands_for="vllm PR#44103", cells=("events-tight",))
def evictions_are_reported_of_another_block(patch: Patch) -> None:
    """A removal event names another block's hash."""
    change_events(patch, "BlockRemoved", lambda e: replace(e, block_hashes=[h ^ 1 for h in e.block_hashes]))


@fault("EVENT-1", stands_for="dynamo#14796", cells=("events",))
def evictions_are_reported_when_requests_end(patch: Patch) -> None:
    """Blocks are reported as removed when their last request ends, although they can still be hit."""

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, blocks: Any) -> None:
        ordered = list(blocks)
        original(this, ordered)
        if this.enable_kv_cache_events:
            evictable = [b.block_hash for b in ordered if b.ref_cnt == 0 and b.block_hash is not None]
            if evictable:
                acted()
            this._emit_block_removed_events(evictable)


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",))
def every_third_store_is_not_reported(patch: Patch) -> None:
    """Every third stored-block event is missing."""
    count = itertools.count(1)
    change_events(patch, "BlockStored", lambda e: None if next(count) % 3 == 0 else e)


@fault("EVENT-1", stands_for="vllm#58119", cells=("events",))
def stored_blocks_have_no_parent(patch: Patch) -> None:
    """Events leave out the parent of a block."""
    change_stores(patch, lambda _: {"parent_block_hash": None})


@fault("EVENT-1", stands_for="ascend#12002", cells=("events",))
def stored_blocks_are_their_own_parents(patch: Patch) -> None:
    """Events name a block as its own parent."""
    change_stores(patch, lambda e: {"parent_block_hash": e.block_hashes[0]})


@fault("EVENT-1", stands_for="vllm#44451", cells=("events",))
def reported_tokens_start_a_position_late(patch: Patch) -> None:
    """The tokens of an event start one position too late."""
    change_stores(patch, lambda e: {"token_ids": [*e.token_ids[1:], e.token_ids[0]]})


@fault("EVENT-1", stands_for="vllm#44451", cells=("events",))
def reported_tokens_exceed_the_blocks(patch: Patch) -> None:
    """An event has more tokens than its blocks."""
    change_stores(patch, lambda e: {"token_ids": [*e.token_ids, 5]})


@fault("EVENT-1", stands_for="sglang#24568", cells=("events",))
def salts_are_not_reported(patch: Patch) -> None:
    """Events leave out the salt."""

    @around(patch, module("v1.core.block_pool"), "to_event_extra_keys")
    def keys(original: Any, extra: Any) -> Any:
        correct = original(extra)
        wrong = original([tuple(key for key in keys or () if key[0] != "cache_salt") or None for keys in extra or ()])
        if correct != wrong:
            acted()
        return wrong


@fault("EVENT-1", stands_for="llmd-router#1389", cells=("events",))
def adapters_are_not_reported(patch: Patch) -> None:
    """Events leave out the adapter."""
    change_stores(patch, lambda _: {"lora_name": None, "lora_id": None})


@fault("EVENT-1", stands_for="vllm PR#28827, its part for subscribers", cells=("events",))
def resets_are_not_reported(patch: Patch) -> None:
    """No event reports cache resets."""
    change_events(patch, "AllBlocksCleared", lambda _: None)


@fault("EVENT-1", stands_for="llmd-kv PR#663", cells=("events",))
def the_first_batch_is_lost(patch: Patch) -> None:
    """The first batch is counted but never sent, and no replay sends it again."""

    @around(patch, EventRecorder, "publish")
    def publish(original: Any, mail: Any, batch: Any) -> None:
        if mail._count == 0:
            acted()
            mail._count = 1
        else:
            original(mail, batch)


@fault("EVENT-3", stands_for="llmd-router#1389", cells=("events",))
def reported_hashes_are_of_other_blocks(patch: Patch) -> None:
    """The published hashes are consistent, but none of them can be computed from the event's fields."""

    @around(patch, module("v1.core.block_pool"), "maybe_convert_block_hash")
    def convert(original: Any, hashed: Any) -> Any:
        acted()
        return original(hashed) ^ 1


@fault("EVENT-2", stands_for="llmd-kv#372", cells=("events-tight",))
def evictions_are_reported_twice(patch: Patch) -> None:
    """Each removal of a block is reported twice."""
    change_events(patch, "BlockRemoved", lambda e: replace(e, block_hashes=e.block_hashes * 2))


@fault("EVENT-2", stands_for="dynamo#14796", cells=("events-tight",))
def hits_are_reported_as_stores(patch: Patch) -> None:
    """Blocks that are hit are reported as stored again, although no copy of them was made."""

    @after_lookup(patch)
    def found(this: Any, request: Any, blocks: Any, count: int) -> None:
        if count and this.enable_kv_cache_events:
            acted()
            this.coordinator.emit_cached_block_events(request, blocks.blocks)


@fault("EVENT-4", stands_for="vllm PR#44103, llmd-kv#372", cells=("events-window",))
def groups_are_not_reported(patch: Patch) -> None:
    """Events leave out the group."""
    change_steps(
        patch, lambda _held, events: [replace(e, group_idx=None) if hasattr(e, "group_idx") else e for e in events]
    )


@fault("EVENT-4", stands_for="vllm PR#43258", cells=("events-window",))
def only_the_first_group_is_reported(patch: Patch) -> None:
    """Only blocks of the first group are reported as stored."""
    change_events(patch, "BlockStored", lambda e: None if e.group_idx else e)


@fault("EVENT-1", stands_for="vllm PR#44103", cells=("events",))
def reported_block_size_is_doubled(patch: Patch) -> None:
    """Events have twice the block size."""
    change_stores(patch, lambda e: {"block_size": 2 * e.block_size})


@fault("EVENT-1", stands_for="ascend#12002", cells=("events",), rare="only prompts with several cached blocks")
def blocks_after_a_hit_have_its_first_block_as_parent(patch: Patch) -> None:
    """After a hit of several blocks, the event of the prompt's next blocks names the first hit block as their
    parent.
    """

    @after(patch, pool(), "_build_block_stored_event")
    def build(event: Any, _this: Any, request: Any, *_: Any, **kwargs: Any) -> None:
        hit = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
        if hit > event.block_size and kwargs["start_token_idx"] == hit:
            acted()
            event.parent_block_hash = module("v1.core.block_pool").maybe_convert_block_hash(request.block_hashes[0])


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",), rare="only every fiftieth event")
def every_fiftieth_event_is_lost(patch: Patch) -> None:
    """Every fiftieth event is missing from its batch."""
    count = itertools.count(1)
    change_steps(patch, lambda _held, events: [event for event in events if next(count) % 50])


@fault("EVENT-2", stands_for="dynamo#14796", cells=("events-tight",), rare="only after an abort")
def blocks_of_aborted_requests_are_reported_as_removed(patch: Patch) -> None:
    """Blocks that an aborted request stored are reported as removed, but can still be hit."""

    @before(patch, scheduler(), "finish_requests")
    def finish(this: Any, names: Any, status: Any) -> None:
        keeper = this.kv_cache_manager
        for request in find_requests(this, names):
            if status.name == "FINISHED_ABORTED" and keeper.enable_kv_cache_events:
                stored = [block.block_hash for block in blocks_of(keeper, request) if block.block_hash is not None]
                if stored:
                    acted()
                keeper.block_pool._emit_block_removed_events(stored)


@fault("EVENT-1", stands_for="llmd-kv#167", cells=("events",))
def adapters_are_reported_by_number(patch: Patch) -> None:
    """Events have an adapter's number instead of its name."""
    change_stores(patch, lambda e: {} if e.lora_name is None else {"lora_name": str(e.lora_id)})


@fault("EVENT-2", stands_for="dynamo PR#10666", cells=("events-tight",), rare="only for several events in one step")
def events_of_a_step_are_reported_backwards(patch: Patch) -> None:
    """The events of a step are published in reverse order."""
    change_steps(patch, lambda _held, events: events[::-1])


@fault("EVENT-1", stands_for="omni#6739", cells=("events",), rare="only for a reset while requests run")
def refused_resets_are_reported(patch: Patch) -> None:
    """A failed reset is reported as if it had cleared everything."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        done = bool(original(this))
        if not done and this.enable_kv_cache_events:
            acted()
            this.kv_event_queue.append(module("distributed.kv_events").AllBlocksCleared())
        return done


@fault("EVENT-1", stands_for="vllm PR#43258", cells=("events",), rare="only for blocks stored in the last step")
def events_are_reported_a_step_late(patch: Patch) -> None:
    """The events of a step are published after the next step."""
    waiting: dict[int, list[Any]] = {}

    def late(this: Any, events: list[Any]) -> list[Any]:
        before, waiting[id(this)] = waiting.get(id(this), []), events
        return before

    change_steps(patch, late)


@fault("EVENT-5", stands_for="events of a reset and of the steps before it in the wrong order", cells=("events",))
def stores_are_reported_after_the_reset_that_removed_them(patch: Patch) -> None:
    """A reset is announced at once, and the blocks that were stored last before it are announced after it."""
    last: dict[Any, list[Any]] = {}

    @around(patch, manager(), "take_events")
    def take(original: Any, this: Any) -> list[Any]:
        events: list[Any] = original(this)
        last[this] = [event for event in events or () if type(event).__name__ == "BlockStored"] or last.get(this, [])
        return events

    @around(patch, scheduler(), "reset_prefix_cache")
    def reset(original: Any, this: Any, *rest: Any, **named: Any) -> bool:
        done = bool(original(this, *rest, **named))
        stored = last.get(this.kv_cache_manager, [])
        events = [*(this.kv_cache_manager.take_events() or ()), *stored]
        if done and events:
            this.kv_event_publisher.publish(module("distributed.kv_events").KVEventBatch(ts=time.time(), events=events))
            if stored:
                acted()
        return done


@fault("EVENT-5", stands_for="vllm PR#57789: no epoch tells one publisher from the next", cells=("events",))
def batch_numbers_go_on_after_a_restart(patch: Patch) -> None:
    """The publisher of a restarted engine continues the batch numbers of the engine before."""
    numbers: dict[str, Iterator[int]] = {}  # by the place that the engines share

    @after(patch, module("distributed.kv_events").ZmqEventPublisher, "__init__")
    def start(_result: Any, this: Any, *_: Any, **__: Any) -> None:
        place = this._endpoint.rpartition("/")[0]
        if place in numbers:
            acted()
        this._seq_gen = numbers.setdefault(place, itertools.count())
