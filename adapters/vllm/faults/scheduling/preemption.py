"""Requests that are preempted and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.blocks.lost_hits import in_reverse
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, manager, module, pool, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before, override

FAULTS, fault = collector("preemption")


@fault("PREEMPT-1", stands_for="LMCache#1969", cells=TIGHT)
def resumed_requests_count_a_block_too_many(patch: Patch) -> None:
    """A resumed request counts one block more as computed than it found: a new block with another request's content."""

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        blocks, count, boundary = original(this, request)
        more = count + this.block_pool.hash_block_size
        if not this.enable_caching or not request.num_preemptions or more >= request.num_tokens:
            return blocks, count, boundary
        acted()
        return blocks, more, boundary


def keep_computed_count(patch: Patch, *, when: Callable[[Any, int], bool]) -> None:
    """Keep the count of computed tokens at a preemption, for requests for which `when(request, block size)` is true."""

    @around(patch, scheduler(), "_preempt_request")
    def preempt(original: Any, this: Any, request: Any, *rest: Any, **kwargs: Any) -> None:
        before, block = request.num_computed_tokens, this.kv_cache_manager.block_pool.hash_block_size
        wrong = this.kv_cache_manager.enable_caching and before and when(request, block)
        original(this, request, *rest, **kwargs)
        if wrong:
            request.num_computed_tokens = before
            acted()


@fault("PREEMPT-1", stands_for="vllm PR#17305", cells=TIGHT)
def a_preemption_keeps_the_computed_count(patch: Patch) -> None:
    """A resumed request keeps its count of computed tokens, but its new blocks contain none of them."""
    keep_computed_count(patch, when=lambda _request, _block: True)


@fault("PREEMPT-1", stands_for="vllm PR#17305", cells=TIGHT, rare="only at the second preemption of a request")
def a_second_preemption_keeps_the_computed_count(patch: Patch) -> None:
    """A request that resumes after its second preemption keeps its count of computed tokens, but its new blocks contain
    none of them.
    """
    keep_computed_count(patch, when=lambda request, _block: request.num_preemptions == 1)


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#17305, vllm PR#43569",
    cells=TIGHT,
    rare="only when a request is preempted between two chunks of its prompt",
)
def a_preempted_prefill_goes_on_where_it_was(patch: Patch) -> None:
    """A request that is preempted in prefill continues at the same token, in new blocks without the earlier tokens."""
    keep_computed_count(patch, when=lambda request, _block: request.num_computed_tokens < request.num_prompt_tokens)


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#17305",
    cells=TIGHT,
    rare="only when a request in decode is preempted just after the last slot of a block was written",
)
def a_preemption_at_a_blocks_end_keeps_the_computed_count(patch: Patch) -> None:
    """A request that is preempted in decode when its last block is just full keeps its count of computed tokens, but
    gets new blocks.
    """

    def at_the_end(request: Any, block: int) -> bool:
        return bool(request.num_output_tokens) and request.num_computed_tokens % block == 0

    keep_computed_count(patch, when=at_the_end)


@fault(
    "PREEMPT-1",
    stands_for="llama.cpp#27148",
    cells=TIGHT,
    rare="only when another request was also preempted and is not finished",
)
def resumed_requests_get_blocks_of_another(patch: Patch) -> None:
    """A resumed request gets the blocks of another request that was preempted before."""
    away: list[Any] = []

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        if this.kv_cache_manager.enable_caching:
            away[:] = [*(one for one in away if not one.is_finished() and one is not request), request]

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        right = original(this, request)
        others = [one for one in away if one is not request and not one.is_finished()]
        if not this.enable_caching or request.status.name != "PREEMPTED" or not others:
            return right
        with override(request, "block_hashes", others[-1].block_hashes):
            wrong = original(this, request)
        if not set(wrong[0].get_block_ids()[0]) <= set(right[0].get_block_ids()[0]):
            acted()
        return wrong


@fault("PREEMPT-2", stands_for="vllm#49449", cells=TIGHT)
def decoded_blocks_of_preempted_requests_get_an_old_hash(patch: Patch) -> None:
    """The hashes of a preempted request's decoded blocks are replaced by the prompt's last hash. Its decoded blocks are
    published and looked up with the hash of other tokens.
    """

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        kept = request.num_prompt_tokens // this.kv_cache_manager.block_pool.hash_block_size
        hashes = request.block_hashes
        if this.kv_cache_manager.enable_caching and 0 < kept < len(hashes):
            hashes[kept:] = [hashes[kept - 1]] * (len(hashes) - kept)
            acted()


@fault(
    "EVENT-3",
    "PREEMPT-2",
    stands_for="vllm#49449, vllm#37076",
    cells=("events-tight", "tight"),
    rare="only for blocks that a request fills after it resumed",
)
def decoded_blocks_of_resumed_requests_have_other_hashes(patch: Patch) -> None:
    """The hashes of a resumed request start without a parent. The blocks that it then decodes are published with hashes
    that no later request computes.
    """

    @around(patch, module("v1.core.kv_cache_utils"), "hash_block_tokens")
    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        return original(function, None if resumed else parent, tokens, extra)

    resumed: list[bool] = []

    @around(patch, module("v1.request").Request, "append_output_token_ids")
    def append(original: Any, request: Any, tokens: Any) -> None:
        before = len(request.block_hashes)
        resumed[:] = [True] if request.num_preemptions else []
        original(request, tokens)
        resumed.clear()
        if request.num_preemptions and len(request.block_hashes) > before:
            acted()


@fault(
    "PREEMPT-2",
    stands_for="vllm PR#43569",
    cells=("tight-priority", "tight"),
    rare="only when the last block's tokens are all known but not all computed",
)
def a_half_written_block_is_published_at_a_preemption(patch: Patch) -> None:
    """A preemption publishes all blocks whose tokens are known, also a block whose last slots no step has written."""

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        inner = this.kv_cache_manager
        block = inner.block_pool.hash_block_size
        known = min(request.num_tokens, len(blocks_of(inner, request)) * block)
        if inner.enable_caching and known // block > request.num_computed_tokens // block:
            inner.cache_blocks(request, known)
            acted()


@fault("PREEMPT-2", "EVENT-2", stands_for="vllm#48435", cells=TIGHT)
def first_blocks_of_preempted_requests_are_freed_first(patch: Patch) -> None:
    """A preempted request's blocks are freed in the order of its tokens. So the beginning, without which the rest
    cannot be hit, is evicted first.
    """
    preempting: list[bool] = []

    @around(patch, scheduler(), "_preempt_request")
    def preempt(original: Any, this: Any, request: Any, *rest: Any, **kwargs: Any) -> None:
        preempting.append(this.kv_cache_manager.enable_caching)
        try:
            original(this, request, *rest, **kwargs)
        finally:
            preempting.pop()

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, blocks: Any) -> None:
        wrong = bool(preempting) and preempting[-1]
        original(this, in_reverse(blocks) if wrong else blocks)


@fault("PREEMPT-1", stands_for="vllm PR#28558", cells=("tight-priority",))
def a_preemption_does_not_ask_for_priorities(patch: Patch) -> None:
    """Where requests have priorities, the latest request is preempted, even if it is the most urgent one."""

    @around(patch, scheduler(), "schedule")
    def schedule(original: Any, this: Any, *rest: Any, **kwargs: Any) -> Any:
        policy = type(this.policy).FCFS if this.kv_cache_manager.enable_caching else this.policy
        with override(this, "policy", policy):
            return original(this, *rest, **kwargs)

    @before(patch, scheduler(), "_preempt_request")
    def preempt(this: Any, request: Any, *_: Any, **__: Any) -> None:
        if any((one.priority, one.arrival_time) > (request.priority, request.arrival_time) for one in this.running):
            acted()


@fault("PREEMPT-1", stands_for="vllm#52520", cells=TIGHT)
def preempted_requests_queue_at_the_end(patch: Patch) -> None:
    """A preempted request is queued behind all later requests, and waits forever while new ones arrive."""

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        if this.kv_cache_manager.enable_caching and len(this.waiting) > 1:
            this.waiting.remove_request(request)
            this.waiting.add_request(request)
            acted()
