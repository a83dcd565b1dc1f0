"""What Coldproof finds otherwise in earlier releases of Transformers, by the release that changed it.

The adapter is written for the newest release. Each class and function says until which release it is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

PAGE, BLOCK = "page_size", "block_size"  # the field with the tokens of a block: up to 5.17 it is the second one
SWITCH = "auto_switch_to_flash"  # up to 5.17 there is no such field
NO_RESET = "the cache of this release cannot be emptied: free_all_requests keeps the blocks of prefixes"
PACKAGE = "transformers.generation.continuous_batching"
CACHE = f"{PACKAGE}.cache"
ALLOCATOR = f"{PACKAGE}.cache_allocators.cache_allocator"  # not there up to 5.17: BlockManager does its work
MANAGER = f"{PACKAGE}.cache_manager"
POLL_SECONDS = 0.5  # between two looks whether the loop still runs

Pause = Callable[[], AbstractContextManager[None]]


def pause_of(manager: Any) -> tuple[Pause, AbstractContextManager[Any]]:
    """Return the function that pauses the manager's loop, and a lock without which the loop does not run on between the
    end of a pause and the request for the next one. Call this before the manager is started.
    """
    if hasattr(manager, "pause"):
        return manager.pause, getattr(manager.background_thread_status, "_condition", contextlib.nullcontext())
    gate = LoopGate(manager)
    return gate.pause, gate.condition


class LoopGate:
    """A pause for releases whose manager has none (up to 5.17): the loop waits before each of its passes.

    A pass begins with `prepare_next_batch`. An idle loop looks for new requests every tenth of a second.
    """

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.condition = threading.Condition()
        self.wanted = self.paused = False
        create = manager._create_batch_processor

        def gated_processor() -> Any:
            processor = create()
            prepare = processor.prepare_next_batch

            def prepare_next_batch() -> Any:
                self.wait_at_gate()
                return prepare()

            processor.prepare_next_batch = prepare_next_batch
            return processor

        manager._create_batch_processor = gated_processor

    def wait_at_gate(self) -> None:
        """Wait, in the loop's thread, while a pause is wanted."""
        with self.condition:
            self.paused = self.wanted
            self.condition.notify_all()
            self.condition.wait_for(lambda: not self.paused)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Pause the loop. Raises RuntimeError if it has ended."""
        with self.condition:
            self.wanted = True
            self.manager._has_new_requests.set()
            while not self.condition.wait_for(lambda: self.paused, POLL_SECONDS):
                if not self.manager.is_running():
                    raise RuntimeError("the generation loop stopped before it could pause")
        try:
            yield
        finally:
            with self.condition:
                self.wanted = self.paused = False
                self.condition.notify_all()


def configuration_of(config_class: Any, fields: dict[str, object]) -> Any:
    """Return a ContinuousBatchingConfig. Up to 5.17, the tokens of a block have another name."""
    known = {field.name for field in dataclasses.fields(config_class)}
    names = {PAGE: PAGE if PAGE in known else BLOCK}
    wanted = {names.get(name, name): value for name, value in fields.items() if name != SWITCH or name in known}
    return config_class(**wanted)


def block_tokens(config: Any) -> int:
    """Return the tokens of a block."""
    return int(getattr(config, PAGE, None) or getattr(config, BLOCK))


def attention_kinds(cache: Any) -> list[str]:
    """Return the kinds of attention of a cache's groups. Up to 5.17, a cache only counts them."""
    if hasattr(cache, "cache_allocators"):
        return list(cache.cache_allocators)
    counts = {
        "full_attention": cache.num_full_attention_groups,
        "sliding_attention": cache.num_sliding_attention_groups,
    }
    return [kind for kind, count in counts.items() if count]


def usage(cache: Any) -> float:
    """Return the fraction of the pool that requests use, without cached blocks that no request uses."""
    if not hasattr(cache, "cache_allocators"):  # up to 5.17, cached blocks count as free
        free: int = cache.get_num_free_blocks()
        return round(1.0 - free / int(cache.num_blocks), 6)
    whole = cache.num_sectors * cache.bytes_per_sector
    cached = sum(len(each.ledger.cached_blocks) * each.bytes_per_block for each in cache.cache_allocators.values())
    used: float = 1.0 - cache.compute_free_capacity() - cached / whole
    return round(used, 6)


def can_reset(cache: Any) -> bool:
    """Return whether the engine can empty its prefix cache. Up to 5.17 it cannot, and new weights may hit old KV."""
    return hasattr(cache, "reset")


def fatal_error(manager: Any) -> Any:
    """Return the error that ended the loop, or None. Up to 5.15, the manager has it, and not its thread's status."""
    return getattr(manager, "background_thread_status", manager).fatal_error


def has_allocators() -> bool:
    """Return whether the cache has an allocator with a ledger for each kind of attention. Up to 5.17 it has not."""
    return importlib.util.find_spec(f"{PACKAGE}.cache_allocators") is not None


def hash_of() -> tuple[Any, str, int]:
    """Return what hashes a block, the name of that function there, and the place of its first argument, the parent."""
    if has_allocators():
        return importlib.import_module(ALLOCATOR), "compute_block_hash", 0
    return importlib.import_module(MANAGER).BlockManager, "compute_hash", 1


def eviction_of() -> tuple[Any, str, str]:
    """Return the class that evicts blocks, the name of that method, and that of its index from hashes to blocks."""
    if has_allocators():
        return importlib.import_module(ALLOCATOR).BlockLedger, "evict_cached_blocks", "hash_to_block"
    return importlib.import_module(MANAGER).BlockManager, "has_enough_free_blocks", "_hash_to_id"


def registration_of(cache: Any) -> str:
    """Return the name of the method with which a cache registers the blocks that a request has filled."""
    known = ("mark_complete_blocks", "mark_shareable_blocks_as_complete")
    return next(name for name in known if hasattr(cache, name))
