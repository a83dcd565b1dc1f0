"""Bugs of the past: resets and pauses that do nothing, lose a token, or reach one of two caches."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, around, before, override

FAULTS, fault = collector("past_resets")


@fault("CTRL-1", stands_for="vllm PR#28827")
def a_reset_under_load_does_nothing_and_succeeds(patch: Patch) -> None:
    """A reset is refused while a request holds blocks, and confirmed all the same."""

    @around(patch, manager(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        if not original(this):
            acted()
        return True


@fault("CTRL-3", "WEIGHT-2", stands_for="vllm PR#34382")
def a_reset_with_running_requests_clears_nothing(patch: Patch) -> None:
    """A reset that has to preempt the running requests leaves them and the cache as they are, and is confirmed."""

    @around(patch, scheduler(), "reset_prefix_cache")
    def reset(original: Any, this: Any, reset_running_requests: bool = False, *args: Any, **kwargs: Any) -> bool:
        if not reset_running_requests or not this.running:
            return bool(original(this, reset_running_requests, *args, **kwargs))
        acted()
        return True


@fault("CTRL-3", "WEIGHT-2", stands_for="vllm#42043, vllm PR#42117")
def a_reset_drops_the_next_token_of_each_request(patch: Patch) -> None:
    """The first token of a running request after a reset counts as one of before it, and is not sent."""
    reset: set[int] = set()

    @before(patch, scheduler(), "_preempt_request")
    def preempt(_this: Any, request: Any, *_: Any, **kwargs: Any) -> None:
        if kwargs.get("drop_stale_output") and request.num_output_tokens:
            reset.add(id(request))

    @around(patch, scheduler(), "_update_request_with_output")
    def update(original: Any, this: Any, request: Any, tokens: list[int], *rest: Any, **kwargs: Any) -> Any:
        sent, stopped = original(this, request, tokens, *rest, **kwargs)
        if not sent or id(request) not in reset:
            return sent, stopped
        acted()
        reset.discard(id(request))
        return sent[1:], stopped


@fault("REUSE-3", stands_for="vllm PR#39566", cells=("small-chunks", "default"))
def steps_without_outputs_leave_no_statistics(patch: Patch) -> None:
    """The counters of a step go out with its outputs. Those of a step without outputs are lost."""

    @around(patch, scheduler(), "update_from_output")
    def update(original: Any, this: Any, *args: Any) -> Any:
        sent = original(this, *args)
        if not any(one.outputs for one in sent.values()):
            for one in sent.values():
                if one.scheduler_stats is not None:
                    acted()
                one.scheduler_stats = None
        return sent


@fault("MM-4", "WEIGHT-2", stands_for="vllm#47147", cells=("images",), workers=("fingerprint",))
def a_pause_leaves_the_front_ends_images(patch: Patch) -> None:
    """A pause that clears the caches leaves the front end's list of the images that the engine has."""

    async def nothing() -> None:
        """Clear nothing."""

    @around(patch, module("v1.engine.async_llm").AsyncLLM, "pause_generation")
    async def pause(original: Any, this: Any, **kwargs: Any) -> None:
        if kwargs.get("clear_cache", True):
            acted()
        with override(this.renderer, "clear_mm_cache_async", nothing):
            await original(this, **kwargs)
