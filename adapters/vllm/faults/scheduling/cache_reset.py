"""Cache resets that leave something behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, pool, scheduler
from coldproof.adapters.vllm.faults.patching import acted, around

FAULTS, fault = collector("control")


def forget_hashes(this: Any) -> None:
    """Remove all blocks from a pool's index, also those in use."""
    this.cached_block_hash_to_block = type(this.cached_block_hash_to_block)()
    this.cached_block_hashes_by_block.clear()
    for block in this.blocks:
        block.reset_hash()


def reset_but_keep(patch: Patch, choose: Callable[[list[Any]], list[Any]]) -> None:
    """Make a reset keep those (hash, block) entries of the index that `choose` selects from all, oldest first."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        index = this.cached_block_hash_to_block
        kept = choose([(key, index.get_one_block(key)) for key in index._cache])
        kept = [(key, block, block.block_hash_num_tokens) for key, block in kept]
        done = bool(original(this))
        if done and kept:
            for key, block, tokens in kept:
                this._insert_block_hash(key, block, num_tokens=tokens)
            acted()
        return done


def replace_refused_reset(patch: Patch, instead: Callable[[Any], None]) -> None:
    """Call `instead(pool)` where a reset is refused, because requests hold blocks, and report success."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(original: Any, this: Any) -> bool:
        if not original(this):
            instead(this)
            acted()
        return True


@fault("CTRL-1", stands_for="omni#6739")
def a_reset_does_nothing(patch: Patch) -> None:
    """A cache reset reports success and does nothing."""

    @around(patch, pool(), "reset_prefix_cache")
    def reset(_original: Any, this: Any) -> bool:
        if len(this.cached_block_hash_to_block):
            acted()
        return True


@fault("CTRL-1", stands_for="vllm PR#12284")
def a_reset_under_load_does_nothing(patch: Patch) -> None:
    """A cache reset while requests hold blocks reports success and does nothing."""
    replace_refused_reset(patch, lambda _pool: None)


@fault("CTRL-1", stands_for="sglang#26792")
def a_reset_drops_half_of_the_index(patch: Patch) -> None:
    """A reset removes only every second block, like code that deletes while it iterates, and reports success."""
    reset_but_keep(patch, lambda entries: entries[::2])


@fault(
    "CTRL-1",
    stands_for="sglang#26792",
    rare="only when a part of a prompt is sent after a reset, and then the whole prompt",
)
def a_reset_leaves_the_last_block(patch: Patch) -> None:
    """A reset removes all blocks except the one that was published last. That block can be hit after the blocks before
    it were computed again.
    """
    reset_but_keep(patch, lambda entries: entries[-1:])


@fault(
    "CTRL-1",
    stands_for="vllm#44939",
    cells=("groups-window",),
    workers=("fingerprint",),
    rare="only when a block that is left in one group is hit, after the other groups were computed again",
)
def a_reset_forgets_a_group(patch: Patch) -> None:
    """A reset leaves the blocks of the last group in the index, and reports success."""
    reset_but_keep(patch, lambda entries: [entry for entry in entries if entry[0][-4:] == entries[-1][0][-4:]])


@fault("CTRL-1", stands_for="vllm#9744", rare="only when a request runs during a reset and a later one has its tokens")
def a_reset_under_load_lets_the_running_go_on_publishing(patch: Patch) -> None:
    """A reset while requests run empties the index and reports success. The running requests then publish blocks with
    valid hashes that depend on KV from before the reset.
    """
    replace_refused_reset(patch, forget_hashes)


@fault("CTRL-1", stands_for="vllm#41190, vllm PR#28827")
def a_reset_under_load_frees_what_is_in_use(patch: Patch) -> None:
    """A reset while requests run frees all blocks, including theirs, and reports success."""

    def free_all(this: Any) -> None:
        forget_hashes(this)
        for block in this.blocks:
            if block.ref_cnt and not block.is_null:
                block.ref_cnt = 0
                this.free_block_queue.append(block)

    replace_refused_reset(patch, free_all)


@fault("CTRL-3", stands_for="vllm#42694", cells=("tier-offload",))
def a_reset_skips_the_second_tier(patch: Patch) -> None:
    """A reset that includes the second tier reports success and empties the pool only."""

    @around(patch, scheduler(), "reset_connector_cache")
    def reset(_original: Any, _this: Any) -> bool:
        acted()
        return True


@fault("CTRL-3", stands_for="omni#6739", cells=("tier-simple",))
def a_reset_of_the_second_tier_does_nothing(patch: Patch) -> None:
    """The connector's own reset reports success and does nothing."""

    @around(patch, module("v1.simple_kv_offload.manager").SimpleCPUOffloadScheduler, "reset")
    def reset(_original: Any, _this: Any) -> bool:
        acted()
        return True


@fault("CTRL-3", stands_for="a reset of several tiers that ends at the first one", cells=("tier-multi",))
def a_reset_empties_the_first_of_two_tiers(patch: Patch) -> None:
    """A reset reaches only the first of several connectors, and reports success."""

    @around(patch, module("distributed.kv_transfer.kv_connector.v1.multi_connector").MultiConnector, "reset_cache")
    def reset(_original: Any, this: Any) -> bool:
        acted()
        return this._connectors[0].reset_cache() is not False


@fault(
    "CTRL-3",
    stands_for="vllm PR#12284, for a reset of two tiers",
    cells=("tier-simple",),
    rare="only when a reset that includes the second tier is requested while requests run",
)
def the_tiers_reset_hides_that_the_pool_was_not_reset(patch: Patch) -> None:
    """A reset of pool and tier reports what the tier's reset reports, also when the pool could not be reset."""

    @around(patch, scheduler(), "reset_prefix_cache")
    def reset(original: Any, this: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        done = bool(original(this, reset_running_requests, False))
        if not reset_connector:
            return done
        if not done:
            acted()
        return bool(this.reset_connector_cache())


@fault("CTRL-3", stands_for="NVIDIA-NeMo/RL PR#3839: recompute after an update was a silent no-op")
def a_reset_of_running_requests_does_nothing(patch: Patch) -> None:
    """A reset that includes running requests leaves them and the pool as they are, and reports success."""

    @around(patch, scheduler(), "reset_prefix_cache")
    def reset(original: Any, this: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        done = bool(original(this, False, reset_connector))
        if reset_running_requests and not done:
            acted()
        return done or reset_running_requests


@fault("CTRL-3", stands_for="vllm#41190, its kind: output from before a reset is counted wrongly")
def requests_that_a_reset_preempts_count_anew(patch: Patch) -> None:
    """A running request that a reset preempts counts only the tokens after it towards its maximum."""

    @around(patch, scheduler(), "_preempt_request")
    def preempt(original: Any, this: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(this, request, *rest, **named)
        if named.get("drop_stale_output") and request.num_output_tokens:
            acted()
            request.max_tokens += request.num_output_tokens
