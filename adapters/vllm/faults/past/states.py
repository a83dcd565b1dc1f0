"""Bugs of the past: models with states, whose steps have to end where a state can be kept."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, around
from coldproof.adapters.vllm.faults.tiers.keys_and_loads import CONNECTOR

FAULTS, fault = collector("past_states")
SPLIT = "_mamba_block_aligned_split"


def prefill_end(request: Any) -> int:
    """Return the position at which a request's prefill ends, also of one that computes its answer again."""
    return int(max(request.num_prompt_tokens, request.num_tokens - 1))


@fault("MIXED-2", "GROUP-1", stands_for="vllm#45414", cells=("state-blocks+chunks-24",))
def a_step_smaller_than_a_states_block_computes_nothing(patch: Patch) -> None:
    """A chunk is rounded down to whole blocks, and to nothing if a step has room for less than a block."""

    @around(patch, scheduler(), SPLIT)
    def split(original: Any, this: Any, request: Any, tokens: int, local: int = 0, external: int = 0) -> int:
        found = int(original(this, request, tokens, local, external))
        start, block = request.num_computed_tokens + local + external, int(this.cache_config.block_size)
        end = start + found
        if not found or end >= prefill_end(request) or end // block * block > start:
            return found
        acted()
        return 0


@fault("MIXED-2", stands_for="vllm#40707, vllm PR#51603", cells=("state+chunks-24+images", "state+images"))
def the_encoders_budget_leaves_less_than_a_block(patch: Patch) -> None:
    """What the encoder's budget leaves of a chunk is rounded down to whole blocks, and may then be nothing."""

    @around(patch, scheduler(), "_try_schedule_encoder_inputs")
    def encode(
        original: Any, this: Any, request: Any, computed: int, tokens: int, budget: int, *rest: Any, **kwargs: Any
    ) -> Any:
        inputs, left, *others = original(this, request, computed, tokens, budget, *rest, **kwargs)
        if not this.need_mamba_block_aligned_split or left >= tokens or computed + left >= prefill_end(request):
            return inputs, left, *others
        block = int(this.cache_config.block_size)
        if (computed + left) // block * block > computed:
            return inputs, left, *others
        acted()
        return [], 0, budget, [], []


class OneTokenMore:
    """A request with one token more than it has, for a lookup."""

    def __init__(self, request: Any) -> None:
        self.request = request

    def __getattr__(self, name: str) -> Any:
        """Return what the request has, and one more of its tokens."""
        found = getattr(self.request, name)
        return found + 1 if name == "num_tokens" else found


@fault("MIXED-2", "TIER-1", stands_for="vllm#51094", cells=("state+tier-offload",))
def a_state_is_loaded_with_the_last_token(patch: Patch) -> None:
    """A prompt that ends with a chunk is loaded whole. Its last token is computed on a state that has seen it."""

    @around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "_lookup_complete_chunks")
    def lookup(original: Any, this: Any, state: Any, most: int | None = None) -> Any:
        request, chunk = state.req, this._mamba_align_size
        if chunk is None or request.num_tokens % chunk:
            return original(this, state, most)
        state.req = OneTokenMore(request)
        try:
            found = original(this, state, most)
        finally:
            state.req = request
        if found and state.num_locally_computed_tokens + found == request.num_tokens:
            acted()
        return found
