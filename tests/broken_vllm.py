"""Bugs to plant in vLLM: each breaks one mechanism of the real thing, as a public report says that it once broke.

The cold engine lives in the same process. It has no cache, so faults in the cache's code leave it right; others look at
whether caching is on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from adapters import inproc_setup

Fault = Callable[[pytest.MonkeyPatch], None]


def module(name: str) -> Any:
    """A module of vLLM, imported when a fault is planted and not before; like the adapter's, it leaves no trace in the
    environment."""
    with inproc_setup.LOCK, inproc_setup.start_environment():
        return inproc_setup.vllm_module(name)


def manager() -> Any:
    """The class that looks blocks up, allocates and frees them for requests."""
    return module("v1.core.kv_cache_manager").KVCacheManager


def pool() -> Any:
    """The class that owns the blocks and the index of their hashes."""
    return module("v1.core.block_pool").BlockPool


def scheduler() -> Any:
    """The class that decides who runs."""
    return module("v1.core.sched.scheduler").Scheduler


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Have `instead(original, *arguments)` called in place of a function or method."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        return instead(original, *arguments, **named)

    patch.setattr(owner, name, call)


def blocks_of(held: Any, request: Any) -> list[Any]:
    """The blocks that a request holds."""
    return list(held.coordinator.get_blocks(request.request_id)[0])


def waits(request: Any) -> bool:
    """Whether a request is not running yet, or not any more."""
    return request.status.name in ("WAITING", "PREEMPTED")


# What a block is known by


def half_a_block_is_hashed(patch: pytest.MonkeyPatch) -> None:
    """A block's hash takes in its first half only, so that prompts which part in the second half share it (a partial
    match taken for a whole one: vllm-mlx#384)."""

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        return original(function, parent, tokens[: len(tokens) // 2], extra)

    around(patch, module("v1.core.kv_cache_utils"), "hash_block_tokens", hashed)


def hashes_forget_who_asks(patch: pytest.MonkeyPatch) -> None:
    """A block's hash has neither adapter nor salt in it (vllm PR#8240, PR#20981)."""
    around(patch, module("v1.core.kv_cache_utils"), "generate_block_hash_extra_keys", lambda *_: (None, 0))


def hashes_differ_each_time(patch: pytest.MonkeyPatch) -> None:
    """A block's hash holds something that no later request repeats (`hash(None)`, LMCache#1139)."""

    def keys(original: Any, request: Any, *rest: Any) -> Any:
        extra, index = original(request, *rest)
        return (*(extra or ()), request.request_id), index

    around(patch, module("v1.core.kv_cache_utils"), "generate_block_hash_extra_keys", keys)


# What is published


def the_last_slot_is_published(patch: pytest.MonkeyPatch) -> None:
    """A block is published together with the slot of the last sampled token, whose KV no pass wrote (vllm#54193)."""

    def free(original: Any, held: Any, request: Any) -> None:
        if request.num_output_tokens:
            held.cache_blocks(request, request.num_tokens)
        original(held, request)

    around(patch, manager(), "free", free)


def what_decode_writes_is_not_published(patch: pytest.MonkeyPatch) -> None:
    """Only the prompt's blocks are: an answer that comes back in the next turn is computed again."""

    def cache(original: Any, coordinator: Any, request: Any, tokens: int) -> None:
        original(coordinator, request, min(tokens, request.num_prompt_tokens))

    around(patch, module("v1.core.kv_cache_coordinator").KVCacheCoordinator, "cache_blocks", cache)


def an_aborted_prefill_is_published(patch: pytest.MonkeyPatch) -> None:
    """All of a prompt's blocks are published before they are written, and an abort leaves them so (vllm PR#56525,
    sglang#38319)."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        for name in [names] if isinstance(names, str) else list(names or ()):
            request = held.requests.get(name)
            if request is not None and request.is_prefill_chunk and held.kv_cache_manager.enable_caching:
                missing = request.num_prompt_tokens - request.num_computed_tokens
                held.kv_cache_manager.allocate_slots(request, missing)
        return original(held, names, status)

    around(patch, scheduler(), "finish_requests", finish)


# What is found, and what is dropped


def the_last_block_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """Each lookup throws away the last block that matched, as is right for EAGLE only (vllm#38182)."""

    def found(original: Any, coordinator: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(coordinator, hashes, longest)
        return tuple(blocks[:-1] for blocks in groups), max(0, length - coordinator.block_size), rest

    coordinator = module("v1.core.kv_cache_coordinator").UnitaryKVCacheCoordinator
    around(patch, coordinator, "find_longest_cache_hit", found)


def the_newest_blocks_go_first(patch: pytest.MonkeyPatch) -> None:
    """New blocks come from the wrong end of the queue: others' cached ones are destroyed while most of the pool was
    never used (field report of 0 hits at 23 % use, vllm#32802)."""

    def new_blocks(original: Any, held: Any, count: int) -> Any:
        newest = held.free_block_queue.get_all_free_blocks()[-count:] if count else []
        for block in newest:
            held.free_block_queue.remove(block)
        held.free_block_queue.prepend_n(newest)
        return original(held, count)

    around(patch, pool(), "get_new_blocks", new_blocks)


def evicted_blocks_stay_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """A block is handed out again while others still find it under its old hash (vllm PR#24084, kvcached#362)."""
    patch.setattr(pool(), "_maybe_evict_cached_block", lambda _held, block: bool(block.reset_hash()))


def blocks_of_the_preempted_stay_in_the_index(patch: pytest.MonkeyPatch) -> None:
    """The same for blocks that a preemption freed, and for no others (kvcached#362)."""
    freed: set[int] = set()

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        freed.update(id(block) for block in blocks_of(held.kv_cache_manager, request))
        original(held, request, *rest, **named)

    def evict(original: Any, held: Any, block: Any) -> Any:
        return bool(block.reset_hash()) if id(block) in freed else original(held, block)

    around(patch, scheduler(), "_preempt_request", preempt)
    around(patch, pool(), "_maybe_evict_cached_block", evict)


def a_reset_only_says_so(patch: pytest.MonkeyPatch) -> None:
    """A cache reset answers success and does nothing."""
    patch.setattr(pool(), "reset_prefix_cache", lambda _: True)


def a_reset_under_load_only_says_so(patch: pytest.MonkeyPatch) -> None:
    """One that comes while requests hold blocks answers success and does nothing (vllm PR#12284)."""

    def reset(original: Any, held: Any) -> bool:
        return original(held) or True

    around(patch, pool(), "reset_prefix_cache", reset)


# How hits are counted


def hits_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Once at the lookup, once at the admission."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        held.record_prefix_cache_stats(request, count)
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)


# Who is admitted, and who comes back


def admission_asks_for_a_cold_prompts_blocks(patch: pytest.MonkeyPatch) -> None:
    """As many blocks have to be free as if nothing of the prompt were cached (vLLM's V0 engine, field report)."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        if held.enable_caching and waits(request):
            needed = -(-request.num_tokens // held.block_pool.hash_block_size)
            if needed > held.block_pool.get_num_free_blocks():
                return None
        return original(held, request, *rest, **named)

    around(patch, manager(), "allocate_slots", allocate)


def cached_blocks_do_not_count_as_free(patch: pytest.MonkeyPatch) -> None:
    """The same, and nobody evicts on purpose: the first request is answered, then nothing ever again (the same
    report)."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        if held.enable_caching and waits(request):
            needed = -(-request.num_tokens // held.block_pool.hash_block_size)
            free = held.block_pool.free_block_queue.get_all_free_blocks()
            if needed > sum(block.block_hash is None for block in free):
                return None
        return original(held, request, *rest, **named)

    around(patch, manager(), "allocate_slots", allocate)


def nobody_checks_that_the_pool_holds_a_prompt(patch: pytest.MonkeyPatch) -> None:
    """An engine starts whose pool is smaller than its longest prompt; such a prompt waits for ever (vllm#35541,
    vllm#39734)."""
    patch.setattr(module("v1.core.kv_cache_utils"), "_check_enough_kv_cache_memory", lambda *_: None)


def long_prompts_are_cut(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is too long is cut and answered, instead of refused."""

    def fit(_original: Any, limits: Any, _tokenizer: Any, tokens: Any) -> Any:
        return tokens[: limits.max_total_tokens - limits.max_output_tokens]

    around(patch, module("renderers.params").TokenizeParams, "_token_len_check", fit)


def aborted_requests_keep_their_blocks(patch: pytest.MonkeyPatch) -> None:
    """What an aborted request held is never given back (vllm#46283)."""

    def free(original: Any, held: Any, request: Any, delay_free_blocks: bool = False) -> Any:
        leaks = held.kv_cache_manager.enable_caching and request.status.name == "FINISHED_ABORTED"
        return original(held, request, delay_free_blocks or leaks)

    around(patch, scheduler(), "_free_request", free)


def the_resumed_believe_a_block_was_loaded(patch: pytest.MonkeyPatch) -> None:
    """A request that comes back after a preemption takes one block more for computed than it has: a new one, with
    what somebody else left in it (LMCache#1969)."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        more = count + held.block_pool.hash_block_size
        wrong = held.enable_caching and request.num_preemptions and more < request.num_tokens
        return blocks, more if wrong else count, boundary

    around(patch, manager(), "get_computed_blocks", found)


# What else is asked for


def scored_prompts_read_the_cache(patch: pytest.MonkeyPatch) -> None:
    """A prompt whose scores are wanted may hit; what hit is not computed and gets no scores. The rows are cleared, so
    that a run does not depend on what lay in memory."""

    def cleared(original: Any, *sizes: Any, **named: Any) -> Any:
        rows = original(*sizes, **named)
        for tensor in (rows.logprob_token_ids, rows.logprobs, rows.selected_token_ranks):
            tensor.zero_()
        return rows

    patch.setattr(module("v1.request").Request, "get_skip_reading_prefix_cache", lambda _: False)
    around(patch, module("v1.outputs").LogprobsTensors, "empty_cpu", cleared)


def answers_write_into_one_block(patch: pytest.MonkeyPatch) -> None:
    """The second answer to a prompt goes on in the first one's last block instead of a copy."""

    def allocate(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> Any:
        new = original(held, request, *rest, **named)
        number, _, parent = request.request_id.partition("_")
        mine = held.coordinator.single_type_managers[0].req_to_blocks
        theirs = mine.get(f"0_{parent}")
        if held.enable_caching and number == "1" and theirs and len(theirs) == len(mine[request.request_id]):
            own, shared = mine[request.request_id][-1], theirs[-1]
            if own is not shared and request.num_computed_tokens < request.num_prompt_tokens:
                held.block_pool.touch([shared])
                mine[request.request_id][-1] = shared
                held.block_pool.free_blocks([own])
        return new

    around(patch, manager(), "allocate_slots", allocate)


def cached_tokens_count_as_answered(patch: pytest.MonkeyPatch) -> None:
    """Stop strings are looked for only behind as many tokens of an answer as came from the cache."""

    def process(original: Any, held: Any, outputs: Any, *rest: Any, **named: Any) -> Any:
        for output in outputs:
            state = held.request_states.get(output.request_id)
            if state is not None and output.prefill_stats is not None and output.prefill_stats.num_cached_tokens:
                state.detokenizer.min_tokens = output.prefill_stats.num_cached_tokens
        return original(held, outputs, *rest, **named)

    around(patch, module("v1.engine.output_processor").OutputProcessor, "process_outputs", process)


def a_grammar_starts_late_on_a_hit(patch: pytest.MonkeyPatch) -> None:
    """The first token of an answer whose prompt came from the cache is neither bound by the grammar nor told to it: its
    state is one token behind from then on (TRT#18891)."""
    hits: set[str] = set()

    def bitmask(original: Any, held: Any, output: Any) -> Any:
        hits.update(data.req_id for data in output.scheduled_new_reqs if data.num_computed_tokens)
        masked = original(held, output)
        if masked is not None:
            for row, name in enumerate(masked.structured_output_request_ids):
                if name in hits and not held.requests[name].num_output_tokens:
                    masked.grammar_bitmask[row] = -1
        return masked

    def accept(original: Any, held: Any, request: Any, tokens: Any) -> bool:
        first = request.num_output_tokens == len(tokens)
        return (first and request.request_id in hits) or original(held, request, tokens)

    around(patch, scheduler(), "get_grammar_bitmask", bitmask)
    around(patch, module("v1.structured_output").StructuredOutputManager, "accept_tokens", accept)
