"""Events, counts and gauges that are wrong only in rare states. The cache itself stays correct."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import pool
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after
from coldproof.adapters.vllm.faults.reporting.cached_tokens import report_cached_tokens
from coldproof.adapters.vllm.faults.reporting.kv_events import change_steps
from coldproof.adapters.vllm.faults.reporting.metrics import change_usage

FAULTS, fault = collector("rare_reports")

THREE_COPIES = 3
MOST_BLOCKS = 16


@fault(
    "EVENT-2",
    stands_for="vllm PR#43258, dynamo#14796",
    cells=("events-tight",),
    rare="only for the third copy of a block, and only once one of the copies is evicted",
)
def a_third_copy_is_not_reported(patch: Patch) -> None:
    """A block of which two copies are cached already is not reported as stored. Each copy is reported as removed."""

    @after(patch, pool(), "cache_full_blocks")
    def cached(_result: Any, this: Any, **named: Any) -> None:
        queue, block = this.kv_event_queue, named["blocks"][named["num_full_blocks"] - 1]
        copies = this.cached_block_hash_to_block._cache.get(block.block_hash)
        single = named["num_full_blocks"] - named["num_cached_blocks"] == 1
        if single and queue and isinstance(copies, dict) and len(copies) >= THREE_COPIES:
            queue.pop()
            acted()


@fault(
    "EVENT-1", stands_for="vllm#58119, ascend#12002", cells=("events",), rare="only after a hit of exactly one block"
)
def the_parent_is_missing_after_a_hit_of_one_block(patch: Patch) -> None:
    """After a hit of one block, the event of the prompt's next blocks names no parent."""

    @after(patch, pool(), "_build_block_stored_event")
    def build(event: Any, _this: Any, request: Any, *_: Any, **named: Any) -> None:
        hit = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
        if named["start_token_idx"] == hit == event.block_size:
            acted()
            event.parent_block_hash = None


@fault(
    "EVENT-2",
    stands_for="dynamo PR#10666, vllm PR#43258",
    cells=("events-tight",),
    rare="only for a block that two requests store in one step, and only once the copies are evicted",
)
def two_copies_stored_in_one_step_are_reported_once(patch: Patch) -> None:
    """Equal blocks that are stored in one step are reported once. Each copy is reported as removed."""

    def merged(_manager: Any, events: list[Any]) -> list[Any]:
        hashes = [event.block_hashes if type(event).__name__ == "BlockStored" else None for event in events]
        return [event for i, event in enumerate(events) if hashes[i] is None or hashes[i] not in hashes[:i]]

    change_steps(patch, merged)


@fault("REUSE-3", "REUSE-1", stands_for="vllm#43736", rare="only for hits of 16 blocks or more")
def hits_are_reported_modulo_sixteen_blocks(patch: Patch) -> None:
    """The client's cached-token count has four bits for the blocks. The answer and the counters are correct."""
    report_cached_tokens(patch, lambda right, _prompt, block: right % (MOST_BLOCKS * block))


@fault("PRESS-4", stands_for="sglang#35270", cells=TIGHT, rare="only while requests share blocks")
def the_gauge_counts_a_shared_block_for_each_holder(patch: Patch) -> None:
    """The pool's usage gauge counts a block that several requests hold several times, and can exceed one."""

    def holders(this: Any, _usage: float) -> float:
        held = sum(int(block.ref_cnt) for block in this.blocks if not block.is_null)
        return held / max(1, int(this.num_gpu_blocks) - 1)

    change_usage(patch, holders)
