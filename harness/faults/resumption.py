"""Answers that go wrong when a preempted request comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module, scheduler

FAULTS, fault = collector("resumption")


def change_first_tokens(patch: Patch, change: Callable[[int, Any], None]) -> None:
    """Have `change(request's last token, output)` alter the first output of each request that came back."""
    away: set[str] = set()

    def preempt(original: Any, held: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(held, request, *rest, **named)
        if request.num_output_tokens:
            away.add(request.request_id)

    def update(original: Any, held: Any, scheduled: Any, *rest: Any, **named: Any) -> Any:
        last = {
            name: held.requests[name].output_token_ids[-1]
            for name in scheduled.num_scheduled_tokens
            if name in away and name in held.requests
        }
        made = original(held, scheduled, *rest, **named)
        for outputs in made.values():
            for output in outputs.outputs:
                if output.request_id in last and output.new_token_ids:
                    away.discard(output.request_id)
                    change(last[output.request_id], output)
        return made

    around(patch, scheduler(), "_preempt_request", preempt)
    around(patch, scheduler(), "update_from_output", update)


@fault("PREEMPT-1", stands_for="vllm#41190, vllm PR#49620", cells=("tight",))
def a_token_is_told_twice_after_a_return(patch: Patch) -> None:
    """The last token before a preemption is delivered again with the first one after the return."""

    def twice(last: int, output: Any) -> None:
        output.new_token_ids = [last, *output.new_token_ids]
        acted()

    change_first_tokens(patch, twice)


@fault("PREEMPT-1", stands_for="vllm PR#41133, vllm PR#49620", cells=("tight",))
def a_token_is_lost_after_a_return(patch: Patch) -> None:
    """The first token after a return is never delivered."""

    def lost(_last: int, output: Any) -> None:
        if output.finish_reason is None:
            output.new_token_ids = output.new_token_ids[1:]
            acted()

    change_first_tokens(patch, lost)


@fault(
    "MIXED-1",
    stands_for="vllm PR#3263",
    cells=("tight",),
    workers=("model",),
    rare="when an adapter's request is preempted",
)
def the_resumed_lose_their_adapter(patch: Patch) -> None:
    """A request that comes back is put into the batch without its adapter, and goes on as the base model."""

    def update(original: Any, runner: Any, scheduled: Any) -> Any:
        for name in scheduled.scheduled_cached_reqs.resumed_req_ids:
            known = runner.requests.get(name)
            if known is not None and known.lora_request is not None and runner.cache_config.enable_prefix_caching:
                known.lora_request = None
                acted()
        return original(runner, scheduled)

    around(patch, module("v1.worker.gpu_model_runner").GPUModelRunner, "_update_states", update)


@fault(
    "PREEMPT-1", "REUSE-3", stands_for="vllm#25780", cells=("tight",), rare="when a request is preempted in its prefill"
)
def the_resumed_are_told_of_their_own_blocks(patch: Patch) -> None:
    """A request that was preempted before its first token and finds its own blocks again tells its client that so much
    of the prompt had been cached."""

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        told = request.prefill_stats
        if held.enable_caching and request.num_preemptions and told is not None and count > told.num_cached_tokens:
            told.set(
                num_prompt_tokens=request.num_prompt_tokens,
                num_local_cached_tokens=min(count, request.num_prompt_tokens),
                num_external_cached_tokens=0,
            )
            acted()
        return blocks, count, boundary

    around(patch, manager(), "get_computed_blocks", found)
