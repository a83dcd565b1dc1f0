"""Evict blocks whose load failed, also with the policy recompute.

Their request still computes them, but until then nothing must hit them, and a block without a hash is hit by nothing.
Once they are computed, they are published again: the number of blocks that their request has published goes back. Those
that several requests share are published by the first of them.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.sched.scheduler", "Scheduler"),
        "_handle_invalid_blocks",
        (
            "if sync_blocks_to_evict and not self.recompute_kv_load_failures:\n",
            "if sync_blocks_to_evict:\n"
            "        (manager,) = self.kv_cache_manager.coordinator.single_type_managers\n"
            "        others = set()\n"
            "        for request in self.running:\n"
            "            published = manager.num_cached_block.get(request.request_id, 0)\n"
            "            first = request.num_computed_tokens // self.block_size\n"
            "            blocks = manager.req_to_blocks[request.request_id][first:published]\n"
            "            first += sum(block.block_id in others for block in blocks)\n"
            "            others.update(block.block_id for block in blocks)\n"
            "            manager.num_cached_block[request.request_id] = min(published, first)\n",
        ),
    )
