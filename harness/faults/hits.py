"""Hits that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.faults.control import forget_hashes
from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, pool, scheduler

FAULTS, fault = collector("hits")


def coordinator() -> Any:
    """The class that looks up prefixes where there is one group of blocks."""
    return module("v1.core.kv_cache_coordinator").UnitaryKVCacheCoordinator


def turned(blocks: Iterable[Any]) -> list[Any]:
    """Blocks that are to be freed, in the opposite order; it matters where more than one of them can be hit."""
    other = list(blocks)[::-1]
    if sum(block.block_hash is not None and block.ref_cnt == 1 for block in other) > 1:
        acted()
    return other


def shorten(patch: Patch, most: Callable[[Any, int], int]) -> None:
    """Have a lookup find no more blocks than `most(hashes, found)` says, of `found` that there are."""

    def found(original: Any, held: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(held, hashes, longest)
        count = most(hashes, length // held.block_size)
        if count * held.block_size >= length:
            return groups, length, rest
        acted()
        return tuple(blocks[:count] for blocks in groups), count * held.block_size, rest

    around(patch, coordinator(), "find_longest_cache_hit", found)


def miss(patch: Patch, whom: Callable[[Any, Any], bool]) -> None:
    """Have the lookups of requests for which `whom(manager, request)` is true find nothing."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        if not held.enable_caching or not count or not whom(held, request):
            return blocks, count, boundary
        acted()
        return held.empty_kv_cache_blocks, 0, 0

    around(patch, manager(), "get_computed_blocks", found)


@fault("CHAT-2", stands_for="vllm#48435")
def what_decode_writes_is_not_published(patch: Patch) -> None:
    """Only the prompt's blocks are: an answer that comes back in the next turn is computed again."""

    def cache(original: Any, held: Any, request: Any, tokens: int) -> None:
        if tokens // held.scheduler_block_size > request.num_prompt_tokens // held.scheduler_block_size:
            acted()
        original(held, request, min(tokens, request.num_prompt_tokens))

    around(patch, module("v1.core.kv_cache_coordinator").KVCacheCoordinator, "cache_blocks", cache)


@fault("REUSE-1", stands_for="vllm#38182")
def the_last_block_is_dropped(patch: Patch) -> None:
    """Each lookup throws away the last block that matched, as is right for EAGLE only."""
    shorten(patch, lambda _hashes, found: max(0, found - 1))


@fault("REUSE-1", stands_for="vllm#53749", rare="when a prompt shares more than four blocks")
def only_the_first_blocks_are_matched(patch: Patch) -> None:
    """A lookup stops after four blocks."""
    shorten(patch, lambda _hashes, found: min(found, 4))


@fault("REUSE-1", stands_for="vllm#53749, vllm#54458")
def hits_come_by_four_blocks(patch: Patch) -> None:
    """A hit is cut down to a multiple of four blocks."""
    shorten(patch, lambda _hashes, found: found // 4 * 4)


@fault("REUSE-1", stands_for="vllm#45238", cells=("blocks-128",), rare="when a prompt is longer than 512 tokens")
def long_prompts_do_not_hit(patch: Patch) -> None:
    """A prompt of more than 512 tokens finds nothing."""
    miss(patch, lambda _held, request: request.num_prompt_tokens > 512)


@fault("REUSE-2", stands_for="vllm#48435")
def only_the_newest_prompt_is_found(patch: Patch) -> None:
    """A lookup finds no more than what the request before it shares."""
    newest: list[Any] = []

    def most(hashes: Any, found: int) -> int:
        before = newest[-1] if newest else hashes
        newest[:] = [hashes]
        shared = next((i for i, (a, b) in enumerate(zip(before, hashes, strict=False)) if a != b), None)
        return min(found, len(before) if shared is None else shared)

    shorten(patch, most)


@fault("LORA-4", stands_for="vllm#23301")
def adapters_do_not_hit(patch: Patch) -> None:
    """A request to an adapter finds nothing."""
    miss(patch, lambda _held, request: request.lora_request is not None)


@fault("SALT-1", stands_for="LMCache#1139")
def salted_prompts_do_not_hit(patch: Patch) -> None:
    """A request with a salt finds nothing."""
    miss(patch, lambda _held, request: request.cache_salt is not None)


@fault("CTRL-2", stands_for="sglang#38319", cells=("small-chunks",))
def an_abort_costs_everybodys_hits(patch: Patch) -> None:
    """Once a client has hung up nothing that was cached before is found."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        done = original(held, names, status)
        inner = held.kv_cache_manager
        if (
            status.name == "FINISHED_ABORTED"
            and inner.enable_caching
            and len(inner.block_pool.cached_block_hash_to_block)
        ):
            forget_hashes(inner.block_pool)
            acted()
        return done

    around(patch, scheduler(), "finish_requests", finish)


@fault("PRESS-1", stands_for="vllm#48435", cells=("tight",))
def a_pool_that_was_full_never_hits_again(patch: Patch) -> None:
    """Once all blocks were in use at a time no lookup finds anything any more."""

    def new_blocks(original: Any, held: Any, count: int) -> Any:
        blocks = original(held, count)
        if held.enable_caching and not held.get_num_free_blocks():
            held.was_full = True
        return blocks

    around(patch, pool(), "get_new_blocks", new_blocks)
    miss(patch, lambda held, _request: getattr(held.block_pool, "was_full", False))


@fault("REUSE-2", stands_for="field report of 0 hits at 23 % use, vllm#32802")
def the_newest_blocks_go_first(patch: Patch) -> None:
    """New blocks come from the wrong end of the queue: others' cached ones are destroyed while most of the pool was
    never used."""

    def new_blocks(original: Any, held: Any, count: int) -> Any:
        queue = held.free_block_queue.get_all_free_blocks()
        newest = queue[-count:] if count else []
        if held.enable_caching and newest != queue[:count][::-1]:
            acted()
        for block in newest:
            held.free_block_queue.remove(block)
        held.free_block_queue.prepend_n(newest)
        return original(held, count)

    around(patch, pool(), "get_new_blocks", new_blocks)


@fault("REUSE-2", "PRESS-1", stands_for="vllm#48435", cells=("tight",))
def beginnings_are_evicted_before_ends(patch: Patch) -> None:
    """Blocks go back in the order of their tokens: the beginning of a prompt, which many share and without which the
    rest is worth nothing, is evicted first."""

    def free(original: Any, held: Any, blocks: Any) -> None:
        original(held, turned(blocks) if held.enable_caching else blocks)

    around(patch, pool(), "free_blocks", free)


@fault(
    "EVENT-2",
    "REUSE-2",
    stands_for="field report of 0 hits at 23 % use, vllm#32802",
    cells=("events-tight",),
    rare="when one of two blocks with equal content is evicted",
)
def an_eviction_unmaps_the_copies_too(patch: Patch) -> None:
    """Two requests computed the same block side by side; when one of the copies is handed out again the other is not
    found any more either."""

    def pop(original: Any, index: Any, key: Any, number: int) -> Any:
        copies = index._cache.get(key)
        if not isinstance(copies, dict) or number not in copies or len(copies) < 2:
            return original(index, key, number)
        acted()
        return index._cache.pop(key)[number]

    around(patch, module("v1.core.block_pool").BlockHashToBlockMap, "pop", pop)


@fault(
    "PRESS-1",
    stands_for="vllm PR#17305, vllm#37076",
    cells=("tight",),
    rare="when a request is admitted at a later try",
)
def the_first_lookup_is_remembered(patch: Patch) -> None:
    """A request that has to wait keeps the blocks that its first lookup found, whatever became of them since."""
    first: dict[str, Any] = {}

    def found(original: Any, held: Any, request: Any) -> Any:
        now = original(held, request)
        if not held.enable_caching or request.num_preemptions:
            return now
        remembered = first.setdefault(request.request_id, now)
        if remembered[0].get_block_ids() != now[0].get_block_ids():
            acted()
        return remembered

    around(patch, manager(), "get_computed_blocks", found)
