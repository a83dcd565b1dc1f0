"""Hits, requests and blocks that are counted wrongly, while the cache is correct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, module, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, after_lookup, around, before
from coldproof.adapters.vllm.faults.reporting.metrics import change_usage, count_resumed_as_new

FAULTS, fault = collector("counts")


@fault("REUSE-3", stands_for="vllm#43736")
def hits_are_counted_twice(patch: Patch) -> None:
    """Each hit is counted at the lookup and again at the admission."""
    record = manager().record_prefix_cache_stats  # vLLM 0.26 has none: the engine must not start, rather than crash

    @after_lookup(patch)
    def found(this: Any, request: Any, _blocks: Any, count: int) -> None:
        record(this, request, count)
        if count:
            acted()


@fault(
    "REUSE-3", "PRESS-2", stands_for="vllm#43736", cells=TIGHT, rare="only when a request is admitted at a later try"
)
def hits_are_counted_at_each_attempt(patch: Patch) -> None:
    """Hits are counted at each lookup: several times for a request that cannot be admitted yet."""
    seen: set[str] = set()
    record = manager().record_prefix_cache_stats

    @after_lookup(patch)
    def found(this: Any, request: Any, _blocks: Any, count: int) -> None:
        record(this, request, count)
        if this.enable_caching and count and request.request_id in seen:
            acted()
        seen.add(request.request_id)

    patch.setattr(manager(), "record_prefix_cache_stats", lambda *_: None)


@fault(
    "REUSE-3",
    "PREEMPT-1",
    stands_for="vllm#25780",
    cells=TIGHT,
    rare="only when a preempted request finds its own blocks",
)
def hits_of_resumed_requests_are_counted(patch: Patch) -> None:
    """When a preempted request resumes, the hits of its own blocks are counted as hits."""
    count_resumed_as_new(patch)


def report_cached_tokens(patch: Patch, change: Callable[[int, int, int], int]) -> None:
    """Report `change(cached tokens, prompt tokens, block size)` to the client as its cached tokens."""
    block = [0]

    @after_lookup(patch)
    def found(this: Any, _request: Any, _blocks: Any, _count: int) -> None:
        block[0] = this.block_pool.hash_block_size

    @around(patch, module("v1.metrics.stats").PrefillStats, "set")
    def set_stats(original: Any, stats: Any, **kwargs: Any) -> None:
        right = kwargs["num_local_cached_tokens"]
        wrong = change(right, kwargs["num_prompt_tokens"], block[0])
        if wrong != right:
            acted()
        original(stats, **{**kwargs, "num_local_cached_tokens": wrong})


@fault("REUSE-3", stands_for="vllm#43736")
def a_hit_is_reported_a_block_too_long(patch: Patch) -> None:
    """The client's cached-token count is one block too high; the answer and the counters are correct."""
    report_cached_tokens(patch, lambda right, prompt, block: right + block if 0 < right <= prompt - block else right)


@fault("REUSE-3", stands_for="ascend#16639")
def a_hit_is_reported_a_block_too_short(patch: Patch) -> None:
    """The client's cached-token count is one block too low; the answer and the counters are correct."""
    report_cached_tokens(patch, lambda right, _prompt, block: max(0, right - block))


@fault("REUSE-3", stands_for="vllm#43736", rare="only when requests with different hits are admitted in one step")
def a_burst_reports_the_hit_of_its_first_request(patch: Patch) -> None:
    """All requests that are admitted in one step report the cached-token count of the first of them."""
    counts: list[int] = []

    @before(patch, scheduler(), "schedule")
    def schedule(*_: Any, **__: Any) -> None:
        counts.clear()

    def first(right: int, prompt: int, _block: int) -> int:
        counts.append(right)
        return min(counts[0], prompt)

    report_cached_tokens(patch, first)


@fault("PRESS-4", stands_for="sglang#35270", cells=TIGHT)
def the_null_block_counts_as_used(patch: Patch) -> None:
    """The pool's usage gauge counts the null block as used, so that it never reports an idle pool."""
    change_usage(patch, lambda this, _usage: 1 - this.get_num_free_blocks() / this.num_gpu_blocks)


@fault("PREEMPT-1", stands_for="vllm#52520", cells=TIGHT)
def preemptions_are_not_counted(patch: Patch) -> None:
    """The engine counts no preemptions."""

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        if this.kv_cache_manager.enable_caching:
            request.num_preemptions -= 1
            acted()
