"""Two events that meet: aborts, preemptions, resets and loads in a state that another of them has left."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.blocks.sharers import free_early
from coldproof.adapters.vllm.faults.engine_parts import blocks_of, coordinator, find_requests, pool, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, around, before
from coldproof.adapters.vllm.faults.scheduling.aborts import before_abort
from coldproof.adapters.vllm.faults.scheduling.preemption import keep_computed_count
from coldproof.adapters.vllm.faults.scheduling.weight_updates import core

FAULTS, fault = collector("collisions")


@fault(
    "CTRL-2",
    stands_for="vllm#43382, mini-sglang PR#142",
    cells=TIGHT,
    rare="only for an abort directly after the step that ends a prefill, of a request that shares blocks",
)
def an_abort_as_the_prefill_ends_frees_what_others_hold(patch: Patch) -> None:
    """A request that is aborted after its first token frees its shared blocks for their other holder too."""
    release = free_early(patch)

    @around(patch, scheduler(), "finish_requests")
    def finish(original: Any, this: Any, names: Any, status: Any) -> Any:
        inner, aborted = this.kv_cache_manager, status.name == "FINISHED_ABORTED"
        ended = [request for request in find_requests(this, names) if request.num_output_tokens == 1]
        shared = [block for request in ended for block in blocks_of(inner, request) if block.ref_cnt > 1]
        done = original(this, names, status)
        if aborted and inner.enable_caching:
            release(inner.block_pool, [block for block in shared[::-1] if block.ref_cnt])
        return done


@fault(
    "PRESS-4",
    "PREEMPT-1",
    stands_for="vllm#44100, sglang PR#29471",
    cells=TIGHT,
    rare="only when a request is aborted while it is preempted",
)
def an_aborted_request_that_was_preempted_resumes(patch: Patch) -> None:
    """A request that is aborted while it is preempted stays in the queue and runs to its end when it resumes."""

    def stays(_scheduler: Any, request: Any) -> bool:
        if request.status.name != "PREEMPTED":
            return False
        acted()
        return True

    before_abort(patch, stays)


@fault(
    "CTRL-1",
    "LORA-3",
    stands_for="omni#6739, vllm PR#28827",
    rare="only for a reset after the load of an adapter, before the next request runs",
)
def a_reset_that_overlaps_a_load_is_skipped(patch: Patch) -> None:
    """A load of an adapter ends with the next step. A reset before that is confirmed and skipped."""

    @before(patch, core(), "add_lora")
    def load(this: Any, _adapter: Any) -> None:
        this.scheduler.kv_cache_manager.block_pool.loading = True

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        if this.waiting or this.running:
            this.kv_cache_manager.block_pool.loading = False

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        if not getattr(this, "loading", False) or not len(this.cached_block_hash_to_block):
            return bool(original(this))
        acted()
        return True


@fault(
    "CTRL-1",
    stands_for="vllm PR#12284, sglang#33783",
    rare="only for the first reset of an idle engine after one that was refused",
)
def a_reset_after_a_refused_one_does_nothing(patch: Patch) -> None:
    """A refused reset counts as pending. The next one finds it pending, is confirmed, and does nothing."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        idle = this.get_num_free_blocks() == this.num_gpu_blocks - 1
        if idle and getattr(this, "refused", False) and len(this.cached_block_hash_to_block):
            this.refused = False
            acted()
            return True
        this.refused = not original(this)
        return not this.refused


@fault(
    "CTRL-3",
    stands_for="tpu-inference PR#3362, sglang#33783",
    cells=TIGHT,
    rare="only for a reset of running requests while another request is preempted",
)
def a_reset_of_running_requests_forgets_the_preempted(patch: Patch) -> None:
    """A reset that includes running requests queues these again. Those that were preempted before it wait forever."""

    @around(patch, scheduler(), "reset_prefix_cache")
    def reset(original: Any, this: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        away = [request for request in this.waiting if request.status.name == "PREEMPTED"]
        done = bool(original(this, reset_running_requests, reset_connector))
        if reset_running_requests and away:
            this.waiting.remove_requests(away)
            acted()
        return done


@fault(
    "CTRL-2",
    "PREEMPT-2",
    stands_for="vllm#49125, vllm PR#43569",
    cells=TIGHT,
    rare="only when a step's budget ends one token before the end of a block, and the prompt goes no further",
)
def a_block_that_lacks_one_token_is_published(patch: Patch) -> None:
    """A block of a prompt is published as soon as all its slots but the last one are written."""

    @around(patch, coordinator(), "cache_blocks")
    def cache(original: Any, this: Any, request: Any, tokens: int) -> None:
        lacks_one = (tokens + 1) % this.block_pool.hash_block_size == 0 and tokens < request.num_prompt_tokens
        if lacks_one and this.block_pool.enable_caching:
            acted()
        original(this, request, tokens + lacks_one)


@fault(
    "PREEMPT-1",
    stands_for="vllm PR#17305",
    cells=("tight-priority", "tight"),
    rare="only when a resumed request is preempted again while it computes the KV of its own answer again",
)
def a_request_preempted_within_its_answer_goes_on_there(patch: Patch) -> None:
    """A resumed request that is preempted before all its earlier tokens are computed again keeps its count of computed
    tokens, but gets new blocks.
    """

    def within_answer(request: Any, _block: int) -> bool:
        return bool(request.num_prompt_tokens <= request.num_computed_tokens < request.num_tokens - 1)

    keep_computed_count(patch, when=within_answer)
