"""Answers that are wrong after a preempted request resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, scheduler
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, after_lookup, around, before

FAULTS, fault = collector("resumption")


def change_first_outputs(patch: Patch, change: Callable[[int, Any], None]) -> None:
    """Apply `change(the request's last token, output)` to the first output of each resumed request."""
    away: set[str] = set()

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, _this: Any, request: Any, *_: Any, **__: Any) -> None:
        if request.num_output_tokens:
            away.add(request.request_id)

    @around(patch, scheduler(), "update_from_output")
    def update(original: Any, this: Any, scheduled: Any, *rest: Any, **kwargs: Any) -> Any:
        last = {
            name: this.requests[name].output_token_ids[-1]
            for name in scheduled.num_scheduled_tokens
            if name in away and name in this.requests
        }
        made = original(this, scheduled, *rest, **kwargs)
        for outputs in made.values():
            for output in outputs.outputs:
                if output.request_id in last and output.new_token_ids:
                    away.discard(output.request_id)
                    change(last[output.request_id], output)
        return made


@fault("PREEMPT-1", stands_for="vllm#41190, vllm PR#49620", cells=TIGHT)
def a_token_is_reported_twice_after_a_resume(patch: Patch) -> None:
    """The last token before a preemption is sent again with the first one after it."""

    def twice(last: int, output: Any) -> None:
        output.new_token_ids = [last, *output.new_token_ids]
        acted()

    change_first_outputs(patch, twice)


@fault("PREEMPT-1", stands_for="vllm PR#41133, vllm PR#49620", cells=TIGHT)
def a_token_is_lost_after_a_resume(patch: Patch) -> None:
    """The first token after a preemption is never sent."""

    def lost(_last: int, output: Any) -> None:
        if output.finish_reason is None:
            output.new_token_ids = output.new_token_ids[1:]
            acted()

    change_first_outputs(patch, lost)


@fault(
    "MIXED-1",
    stands_for="vllm PR#3263",
    cells=TIGHT,
    workers=("model",),
    rare="only when a request with an adapter is preempted",
)
def resumed_requests_lose_their_adapter(patch: Patch) -> None:
    """A resumed request is added to the batch without its adapter, and continues as the base model."""

    @before(patch, module("v1.worker.gpu_model_runner").GPUModelRunner, "_update_states")
    def update(runner: Any, scheduled: Any) -> None:
        for name in scheduled.scheduled_cached_reqs.resumed_req_ids:
            known = runner.requests.get(name)
            if known is not None and known.lora_request is not None and runner.cache_config.enable_prefix_caching:
                known.lora_request = None
                acted()


@fault("PREEMPT-1", "REUSE-3", stands_for="vllm#25780", cells=TIGHT, rare="only when a request is preempted in prefill")
def resumed_requests_report_hits_on_their_own_blocks(patch: Patch) -> None:
    """A request that was preempted before its first token reports its own blocks as cached tokens when it resumes."""

    @after_lookup(patch)
    def found(this: Any, request: Any, _blocks: Any, count: int) -> None:
        stats = request.prefill_stats
        if this.enable_caching and request.num_preemptions and stats is not None and count > stats.num_cached_tokens:
            stats.set(
                num_prompt_tokens=request.num_prompt_tokens,
                num_local_cached_tokens=min(count, request.num_prompt_tokens),
                num_external_cached_tokens=0,
            )
            acted()
