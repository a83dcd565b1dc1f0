"""What is counted. The cache itself stays right: only whoever reads its counters and gauges is misled."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, pool, waits

FAULTS, fault = collector("metrics")


def recorded(patch: Patch, change: Callable[[Any, Any, int], int]) -> None:
    """Have `change(manager, request, hits)` say how many tokens of a lookup are counted as hits."""

    def record(original: Any, held: Any, request: Any, hits: int) -> None:
        said = change(held, request, hits)
        if said != hits and held.prefix_cache_lookup_enabled(request):
            acted()
        original(held, request, said)

    around(patch, manager(), "record_prefix_cache_stats", record)


@fault("REUSE-3", stands_for="ascend#16639")
def hits_are_not_counted(patch: Patch) -> None:
    """The counter of hits never moves."""
    recorded(patch, lambda _held, _request, _hits: 0)


@fault("REUSE-3", stands_for="vllm#43736")
def hits_are_counted_in_blocks(patch: Patch) -> None:
    """The counter of hit tokens grows by one for each block."""
    recorded(patch, lambda held, _request, hits: int(hits // held.block_pool.hash_block_size))


@fault("REUSE-3", stands_for="vllm#43736")
def a_hit_counts_for_the_whole_prompt(patch: Patch) -> None:
    """Whoever hits anything is counted as having hit all of its prompt."""
    recorded(patch, lambda _held, request, hits: request.num_tokens if hits else 0)


@fault("REUSE-3", stands_for="vllm#43736", rare="every seventh hit")
def every_seventh_hit_is_counted_twice(patch: Patch) -> None:
    """The counter grows by twice the tokens of every seventh hit."""
    count = itertools.count(1)

    def change(_held: Any, _request: Any, hits: int) -> int:
        return 2 * hits if hits and next(count) % 7 == 0 else hits

    recorded(patch, change)


@fault("PRESS-2", stands_for="vllm#43736, vllm PR#48860", cells=("tight",), rare="a hit that has to wait")
def each_try_is_counted(patch: Patch) -> None:
    """A request that hits and finds no room is counted at each of its tries, not at its admission alone."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        hits = named.get("num_new_computed_tokens", 0)
        new = original(held, request, *rest, **named)
        if new is None and waits(request) and hits and held.prefix_cache_lookup_enabled(request):
            acted()
            held.record_prefix_cache_stats(request, hits)
        return new

    around(patch, manager(), "allocate_slots", allocate)


@fault("REUSE-3", "PREEMPT-1", stands_for="vllm#25780", cells=("tight",), rare="after a preemption")
def the_resumed_count_as_new(patch: Patch) -> None:
    """What a preempted request finds of itself is counted among the hits of new requests."""

    def record(original: Any, stats: Any, num_tokens: int, num_hits: int, preempted: bool, *rest: Any, **n: Any) -> Any:
        if preempted and num_hits:
            acted()
        return original(stats, num_tokens, num_hits, False, *rest, **n)

    around(patch, module("v1.metrics.stats").PrefixCacheStats, "record", record)


@fault("REUSE-3", stands_for="vllm PR#30522")
def repeats_are_not_queried(patch: Patch) -> None:
    """A prompt that hits all its blocks is not counted among the queries: the rate of hits can exceed one."""

    def record(original: Any, held: Any, request: Any, hits: int) -> None:
        whole = hits and request.num_tokens - hits <= held.block_pool.hash_block_size
        if not whole or not held.prefix_cache_lookup_enabled(request):
            original(held, request, hits)
        elif held.log_stats:
            acted()
            held.prefix_cache_stats.record(num_tokens=0, num_hits=hits, preempted=request.num_preemptions > 0)

    around(patch, manager(), "record_prefix_cache_stats", record)


@fault("PRESS-4", stands_for="sglang#35270", cells=("tight",))
def the_gauge_never_falls(patch: Patch) -> None:
    """The gauge of the pool's use says the most that ever was in use."""
    most: dict[int, float] = {}

    def usage(original: Any, held: Any) -> float:
        now = original(held)
        most[id(held)] = max(now, most.get(id(held), 0.0))
        if held.enable_caching and now < most[id(held)]:
            acted()
            return most[id(held)]
        return float(now)

    around(patch, pool(), "get_usage", usage)


@fault("PRESS-4", stands_for="sglang#35270", cells=("tight",))
def the_gauge_never_rises(patch: Patch) -> None:
    """The gauge of the pool's use says that nothing is in use."""

    def usage(original: Any, held: Any) -> float:
        now = float(original(held))
        if held.enable_caching and now:
            acted()
            return 0.0
        return now

    around(patch, pool(), "get_usage", usage)


@fault("PRESS-2", stands_for="vllm PR#17305", cells=("tight",), rare="a request that has to wait")
def a_count_is_that_of_the_first_try(patch: Patch) -> None:
    """A request that finds no room at first is told what it would have hit then, whatever it hits later."""

    def told(original: Any, stats: Any, **named: Any) -> None:
        hit = stats.num_cached_tokens
        if not stats.num_prompt_tokens:
            original(stats, **named)
        elif named["num_local_cached_tokens"] + named["num_external_cached_tokens"] != hit:
            acted()

    around(patch, module("v1.metrics.stats").PrefillStats, "set", told)
