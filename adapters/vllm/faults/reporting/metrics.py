"""Wrong metrics. The cache itself stays correct: only its counters and gauges are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import is_waiting, manager, module, pool
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, around

FAULTS, fault = collector("metrics")


def change_recorded_hits(patch: Patch, change: Callable[[Any, Any, int], int]) -> None:
    """Count `change(manager, request, hits)` tokens of each lookup as hits."""

    @around(patch, manager(), "record_prefix_cache_stats")
    def record(original: Any, this: Any, request: Any, hits: int) -> None:
        counted = change(this, request, hits)
        if counted != hits and this.prefix_cache_lookup_enabled(request):
            acted()
        original(this, request, counted)


def count_resumed_as_new(patch: Patch) -> None:
    """Count the lookups of resumed requests like those of new requests."""

    @around(patch, module("v1.metrics.stats").PrefixCacheStats, "record")
    def record(original: Any, stats: Any, num_tokens: int, num_hits: int, preempted: bool, *rest: Any, **n: Any) -> Any:
        if preempted and num_hits:
            acted()
        return original(stats, num_tokens, num_hits, False, *rest, **n)


def change_usage(patch: Patch, change: Callable[[Any, float], float]) -> None:
    """Report `change(pool, usage)` as the usage of a pool with caching."""

    @around(patch, pool(), "get_usage")
    def usage(original: Any, this: Any) -> float:
        right = float(original(this))
        reported = change(this, right) if this.enable_caching else right
        if reported != right:
            acted()
        return reported


@fault("REUSE-3", stands_for="ascend#16639")
def hits_are_not_counted(patch: Patch) -> None:
    """The counter of hit tokens never increases."""
    change_recorded_hits(patch, lambda _held, _request, _hits: 0)


@fault("REUSE-3", stands_for="vllm#43736")
def hits_are_counted_in_blocks(patch: Patch) -> None:
    """The counter of hit tokens increases by one for each block."""
    change_recorded_hits(patch, lambda this, _request, hits: int(hits // this.block_pool.hash_block_size))


@fault("REUSE-3", stands_for="vllm#43736")
def a_hit_counts_for_the_whole_prompt(patch: Patch) -> None:
    """A request that hits anything counts as a hit of its whole prompt."""
    change_recorded_hits(patch, lambda _held, request, hits: request.num_tokens if hits else 0)


@fault("REUSE-3", stands_for="vllm#43736", rare="only every seventh hit")
def every_seventh_hit_is_counted_twice(patch: Patch) -> None:
    """Every seventh hit is counted twice."""
    count = itertools.count(1)

    def change(_held: Any, _request: Any, hits: int) -> int:
        return 2 * hits if hits and next(count) % 7 == 0 else hits

    change_recorded_hits(patch, change)


@fault(
    "PRESS-2",
    stands_for="vllm#43736, vllm PR#48860",
    cells=TIGHT,
    rare="only for a request with a hit that has to wait",
)
def each_attempt_is_counted(patch: Patch) -> None:
    """A request that hits but cannot be admitted yet is counted at each try."""
    record = manager().record_prefix_cache_stats

    @around(patch, manager(), "allocate_slots")
    def allocate(original: Any, this: Any, request: Any, *rest: Any, **kwargs: Any) -> Any:
        hits = kwargs.get("num_new_computed_tokens", 0)
        new = original(this, request, *rest, **kwargs)
        if new is None and is_waiting(request) and hits and this.prefix_cache_lookup_enabled(request):
            acted()
            record(this, request, hits)
        return new


@fault("REUSE-3", "PREEMPT-1", stands_for="vllm#25780", cells=TIGHT, rare="only after a preemption")
def resumed_requests_count_as_new(patch: Patch) -> None:
    """When a preempted request resumes, the hits of its own blocks are counted as hits of a new request."""
    count_resumed_as_new(patch)


@fault("REUSE-3", stands_for="vllm PR#30522")
def repeats_are_not_queried(patch: Patch) -> None:
    """A prompt that hits all its blocks is not counted as a query, so that the hit rate can exceed one."""

    @around(patch, manager(), "record_prefix_cache_stats")
    def record(original: Any, this: Any, request: Any, hits: int) -> None:
        whole = hits and request.num_tokens - hits <= this.block_pool.hash_block_size
        if not whole or not this.prefix_cache_lookup_enabled(request):
            original(this, request, hits)
        elif this.log_stats:
            acted()
            this.prefix_cache_stats.record(num_tokens=0, num_hits=hits, preempted=request.num_preemptions > 0)


@fault("PRESS-4", stands_for="sglang#35270", cells=TIGHT)
def the_gauge_never_falls(patch: Patch) -> None:
    """The pool's usage gauge reports the highest usage so far."""
    most: dict[int, float] = {}

    def highest(this: Any, usage: float) -> float:
        most[id(this)] = max(usage, most.get(id(this), 0.0))
        return most[id(this)]

    change_usage(patch, highest)


@fault("PRESS-4", stands_for="sglang#35270", cells=TIGHT)
def the_gauge_never_rises(patch: Patch) -> None:
    """The pool's usage gauge always reports that nothing is in use."""
    change_usage(patch, lambda _held, _usage: 0.0)


@fault("PRESS-2", "PRESS-1", stands_for="vllm PR#17305", cells=TIGHT, rare="only for a request that has to wait")
def a_count_is_that_of_the_first_attempt(patch: Patch) -> None:
    """A request that is not admitted at its first lookup reports the cached tokens of that lookup, whatever it hits
    later.
    """

    @around(patch, module("v1.metrics.stats").PrefillStats, "set")
    def set_stats(original: Any, stats: Any, **kwargs: Any) -> None:
        hit = stats.num_cached_tokens
        if not stats.num_prompt_tokens:
            original(stats, **kwargs)
        elif kwargs["num_local_cached_tokens"] + kwargs["num_external_cached_tokens"] != hit:
            acted()
