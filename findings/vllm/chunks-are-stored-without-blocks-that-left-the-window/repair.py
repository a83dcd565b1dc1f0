"""Store a chunk only if all of its blocks are there.

A request that hits a prefix has no block for what its window does not reach. A chunk of which the last block is there
was stored without the others, and found again as a whole.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler"),
        "_build_store_jobs",
        (
            "assert len(offload_keys) == len(offload_block_ids)\n",
            """assert len(offload_keys) == len(offload_block_ids)
            first_block = start_chunk_idx * blocks_per_chunk
            offload_block_ids = [
                min(group_state.block_ids[block : block + blocks_per_chunk])
                for block in range(first_block, num_chunks * blocks_per_chunk, blocks_per_chunk)
            ]
""",
        ),
    )
