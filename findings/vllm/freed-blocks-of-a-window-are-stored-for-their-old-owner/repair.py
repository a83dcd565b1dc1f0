"""Take a block that a window has freed, and that holds something else since, for one that is gone.

The connector keeps the blocks that a request got. What a block holds now is said by its hash.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler"),
        "_select_eager_blocks_to_store",
        (
            "if gpu_block.is_null:\n",
            """held = gpu_block.block_hash
            first, end = (at * group_size // self.hash_block_size for at in (i, i + 1))
            own = {*request.block_hashes[first:end], *(resolved_hashes[at] for at in (i,) if at < len(resolved_hashes))}
            if gpu_block.is_null or (held is not None and get_block_hash(held) not in own):
""",
        ),
    )
