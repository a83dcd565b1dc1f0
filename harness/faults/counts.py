"""Hits, requests and blocks that are counted wrongly while all is well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, pool, scheduler

FAULTS, fault = collector("counts")


@fault("REUSE-3", stands_for="vllm#43736")
def hits_are_counted_twice(patch: Patch) -> None:
    """Once at the lookup, once at the admission."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        held.record_prefix_cache_stats(request, count)
        if count:
            acted()
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)


@fault(
    "REUSE-3", "PRESS-2", stands_for="vllm#43736", cells=("tight",), rare="when a request is admitted at a later try"
)
def hits_are_counted_at_each_try(patch: Patch) -> None:
    """Hits are counted where they are looked up: again and again for a request that cannot be admitted yet."""
    seen: set[str] = set()
    record = manager().record_prefix_cache_stats

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        record(held, request, count)
        if held.enable_caching and count and request.request_id in seen:
            acted()
        seen.add(request.request_id)
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)
    patch.setattr(manager(), "record_prefix_cache_stats", lambda *_: None)


@fault(
    "REUSE-3",
    "PREEMPT-1",
    stands_for="vllm#25780",
    cells=("tight",),
    rare="when a preempted request finds its blocks again",
)
def hits_of_the_resumed_count_as_hits(patch: Patch) -> None:
    """What a preempted request finds of its own blocks is counted with the hits."""

    def record(original: Any, stats: Any, *rest: Any, **named: Any) -> None:
        if named.get("preempted"):
            named["preempted"] = False
            if named.get("num_hits"):
                acted()
        original(stats, *rest, **named)

    around(patch, module("v1.metrics.stats").PrefixCacheStats, "record", record)


def tell(patch: Patch, change: Callable[[int, int, int], int]) -> None:
    """Have `change(cached tokens, prompt tokens, block)` be what a client is told of its hit."""
    block = [0]

    def found(original: Any, held: Any, request: Any) -> Any:
        block[0] = held.block_pool.hash_block_size
        return original(held, request)

    def told(original: Any, stats: Any, **named: Any) -> None:
        right = named["num_local_cached_tokens"]
        wrong = change(right, named["num_prompt_tokens"], block[0])
        if wrong != right:
            acted()
        original(stats, **{**named, "num_local_cached_tokens": wrong})

    around(patch, manager(), "get_computed_blocks", found)
    around(patch, module("v1.metrics.stats").PrefillStats, "set", told)


@fault("REUSE-3", stands_for="vllm#43736")
def a_hit_is_told_a_block_too_long(patch: Patch) -> None:
    """A client is told of one block more than was hit; the answer and the counters are right."""
    tell(patch, lambda right, prompt, block: right + block if 0 < right <= prompt - block else right)


@fault("REUSE-3", stands_for="ascend#16639")
def a_hit_is_told_a_block_too_short(patch: Patch) -> None:
    """A client is told of one block less than was hit; the answer and the counters are right."""
    tell(patch, lambda right, _prompt, block: max(0, right - block))


@fault("REUSE-3", stands_for="vllm#43736", rare="when requests with different hits are admitted in one step")
def a_burst_is_told_its_first_ones_hit(patch: Patch) -> None:
    """Of the requests that are admitted in one step all are told of as many cached tokens as the first one of them."""
    told: list[int] = []

    def schedule(original: Any, held: Any, *rest: Any, **named: Any) -> Any:
        told.clear()
        return original(held, *rest, **named)

    def first(right: int, prompt: int, _block: int) -> int:
        told.append(right)
        return min(told[0], prompt)

    around(patch, scheduler(), "schedule", schedule)
    tell(patch, first)


@fault("PRESS-4", stands_for="sglang#35270", cells=("tight",))
def the_null_block_counts_as_used(patch: Patch) -> None:
    """The gauge of the pool's use counts a block that nobody can have, and never says that nothing is in use."""

    def usage(original: Any, held: Any) -> float:
        if not held.enable_caching:
            return float(original(held))
        acted()
        return float(1 - held.get_num_free_blocks() / held.num_gpu_blocks)

    around(patch, pool(), "get_usage", usage)


@fault("PREEMPT-1", stands_for="vllm#52520", cells=("tight",))
def preemptions_are_not_counted(patch: Patch) -> None:
    """Requests are preempted, and the engine says that none was."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(held, request, *rest, **named)
        if held.kv_cache_manager.enable_caching:
            request.num_preemptions -= 1
            acted()

    around(patch, scheduler(), "_preempt_request", preempt)
