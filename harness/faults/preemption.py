"""Requests that are preempted and come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.hits import turned
from harness.faults.patching import Patch, acted, around, blocks_of, manager, module, pool, scheduler

FAULTS, fault = collector("preemption")


@fault("PREEMPT-1", stands_for="LMCache#1969", cells=("tight",))
def the_resumed_believe_a_block_was_loaded(patch: Patch) -> None:
    """A request that comes back after a preemption takes one block more for computed than it has: a new one, with
    what somebody else left in it."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        more = count + held.block_pool.hash_block_size
        if not held.enable_caching or not request.num_preemptions or more >= request.num_tokens:
            return blocks, count, boundary
        acted()
        return blocks, more, boundary

    around(patch, manager(), "get_computed_blocks", found)


def keep_computed_count(patch: Patch, *, when: Callable[[Any, int], bool]) -> None:
    """Have a preemption leave the count of computed tokens as it is, for requests that `when(request, block)` picks."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        before, block = request.num_computed_tokens, held.kv_cache_manager.block_pool.hash_block_size
        wrong = held.kv_cache_manager.enable_caching and before and when(request, block)
        original(held, request, *rest, **named)
        if wrong:
            request.num_computed_tokens = before
            acted()

    around(patch, scheduler(), "_preempt_request", preempt)


@fault("PREEMPT-1", stands_for="vllm PR#17305", cells=("tight",))
def a_preemption_keeps_the_computed_count(patch: Patch) -> None:
    """A preempted request comes back with the count of computed tokens that it had, and with new blocks in which none
    of them are."""
    keep_computed_count(patch, when=lambda _request, _block: True)


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#17305",
    cells=("tight",),
    rare="at the second preemption of one request",
)
def a_second_preemption_keeps_the_computed_count(patch: Patch) -> None:
    """A request that is preempted for the second time comes back with the count of computed tokens that it had, and
    with new blocks in which none of them are."""
    keep_computed_count(patch, when=lambda request, _block: request.num_preemptions == 1)


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#17305, vllm PR#43569",
    cells=("tight",),
    rare="when a request is preempted between two chunks of its prompt",
)
def a_preempted_prefill_goes_on_where_it_was(patch: Patch) -> None:
    """A request that is preempted before its prompt is computed to its end goes on where it was, in new blocks."""
    keep_computed_count(patch, when=lambda request, _block: request.num_computed_tokens < request.num_prompt_tokens)


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#17305",
    cells=("tight",),
    rare="when a request is preempted with the last slot of a block just written, while decoding",
)
def a_preemption_at_a_blocks_end_keeps_the_computed_count(patch: Patch) -> None:
    """A request that is preempted in decode when its last block is just full comes back with the count of computed
    tokens that it had, and with new blocks."""

    def at_the_end(request: Any, block: int) -> bool:
        return bool(request.num_output_tokens) and request.num_computed_tokens % block == 0

    keep_computed_count(patch, when=at_the_end)


@fault(
    "PREEMPT-1",
    stands_for="llama.cpp#27148",
    cells=("tight",),
    rare="when another request was preempted, too, and is not over",
)
def the_resumed_get_anothers_blocks(patch: Patch) -> None:
    """A request that comes back is given the blocks of another one that was preempted before."""
    away: list[Any] = []

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(held, request, *rest, **named)
        if held.kv_cache_manager.enable_caching:
            away[:] = [*(one for one in away if not one.is_finished() and one is not request), request]

    def found(original: Any, held: Any, request: Any) -> Any:
        right = original(held, request)
        others = [one for one in away if one is not request and not one.is_finished()]
        if not held.enable_caching or request.status.name != "PREEMPTED" or not others:
            return right
        mine, request.block_hashes = request.block_hashes, others[-1].block_hashes
        try:
            wrong = original(held, request)
        finally:
            request.block_hashes = mine
        if not set(wrong[0].get_block_ids()[0]) <= set(right[0].get_block_ids()[0]):
            acted()
        return wrong

    around(patch, scheduler(), "_preempt_request", preempt)
    around(patch, manager(), "get_computed_blocks", found)


@fault("PREEMPT-2", stands_for="vllm#49449", cells=("tight",))
def decoded_blocks_of_the_preempted_get_an_old_hash(patch: Patch) -> None:
    """Of a preempted request's hashes those behind its prompt are filled up with the prompt's last one: what it decodes
    is published, and looked for, under the hash of other tokens."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(held, request, *rest, **named)
        kept = request.num_prompt_tokens // held.kv_cache_manager.block_pool.hash_block_size
        hashes = request.block_hashes
        if held.kv_cache_manager.enable_caching and 0 < kept < len(hashes):
            hashes[kept:] = [hashes[kept - 1]] * (len(hashes) - kept)
            acted()

    around(patch, scheduler(), "_preempt_request", preempt)


@fault(
    "EVENT-3",
    "PREEMPT-2",
    stands_for="vllm#49449, vllm#37076",
    cells=("events-tight", "tight"),
    rare="for blocks that a request fills after its return",
)
def what_the_resumed_decode_gets_a_hash_of_its_own(patch: Patch) -> None:
    """A resumed request's hashes go on from nothing instead of from the block before: what it decodes from then on is
    published under hashes that no later request computes."""

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        return original(function, None if resumed else parent, tokens, extra)

    resumed: list[bool] = []

    def append(original: Any, request: Any, tokens: Any) -> None:
        before = len(request.block_hashes)
        resumed[:] = [True] if request.num_preemptions else []
        original(request, tokens)
        resumed.clear()
        if request.num_preemptions and len(request.block_hashes) > before:
            acted()

    around(patch, module("v1.request").Request, "append_output_token_ids", append)
    around(patch, module("v1.core.kv_cache_utils"), "hash_block_tokens", hashed)


@fault(
    "PREEMPT-2",
    stands_for="vllm PR#43569",
    cells=("tight-priority", "tight"),
    rare="when the last block's tokens are all known and not all of them computed",
)
def a_half_written_block_is_published_at_a_preemption(patch: Patch) -> None:
    """Before a preempted request's blocks are freed all that are full of known tokens are published, also the one
    whose last slots no step has written yet."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        inner = held.kv_cache_manager
        block = inner.block_pool.hash_block_size
        known = min(request.num_tokens, len(blocks_of(inner, request)) * block)
        if inner.enable_caching and known // block > request.num_computed_tokens // block:
            inner.cache_blocks(request, known)
            acted()
        original(held, request, *rest, **named)

    around(patch, scheduler(), "_preempt_request", preempt)


@fault("PREEMPT-2", "EVENT-2", stands_for="vllm#48435", cells=("tight",))
def the_preempteds_first_blocks_are_freed_first(patch: Patch) -> None:
    """A preempted request's blocks go back in the order of its tokens, so that the beginning, which others share and
    without which the rest is worth nothing, is evicted before the end."""
    preempting: list[bool] = []

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        preempting.append(held.kv_cache_manager.enable_caching)
        try:
            original(held, request, *rest, **named)
        finally:
            preempting.pop()

    def free(original: Any, held: Any, blocks: Any) -> None:
        wrong = bool(preempting) and preempting[-1]
        original(held, turned(blocks) if wrong else blocks)

    around(patch, scheduler(), "_preempt_request", preempt)
    around(patch, pool(), "free_blocks", free)


@fault("PREEMPT-1", stands_for="vllm PR#28558", cells=("tight-priority",))
def a_preemption_does_not_ask_for_priorities(patch: Patch) -> None:
    """Where requests have priorities, the one that came last is preempted all the same, be it the most urgent."""

    def schedule(original: Any, held: Any, *rest: Any, **named: Any) -> Any:
        policy = held.policy
        if held.kv_cache_manager.enable_caching:
            held.policy = type(policy).FCFS
        try:
            return original(held, *rest, **named)
        finally:
            held.policy = policy

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        if any((one.priority, one.arrival_time) > (request.priority, request.arrival_time) for one in held.running):
            acted()
        original(held, request, *rest, **named)

    around(patch, scheduler(), "schedule", schedule)
    around(patch, scheduler(), "_preempt_request", preempt)


@fault("PREEMPT-1", stands_for="vllm#52520", cells=("tight",))
def the_preempted_queue_up_at_the_end(patch: Patch) -> None:
    """A preempted request waits behind all that came after it: where there is always somebody new, for ever."""

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(held, request, *rest, **named)
        if held.kv_cache_manager.enable_caching and len(held.waiting) > 1:
            held.waiting.remove_request(request)
            held.waiting.add_request(request)
            acted()

    around(patch, scheduler(), "_preempt_request", preempt)
