"""Count only the blocks that a request holds against the most that it may hold.

The table of a group with a sliding window also has null blocks, in the place of those that were given back. What is
missing is the smaller of two numbers: blocks that the tokens need beyond the table, and room below the cap.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.single_type_kv_cache_manager", "SingleTypeKVCacheManager"),
        "get_num_blocks_to_allocate",
        (
            "        return max(num_required_blocks - num_req_blocks, 0)\n",
            "        if apply_admission_cap and self.max_admission_blocks_per_request is not None:\n"
            "            held = sum(not block.is_null for block in self.req_to_blocks[request_id])\n"
            "            missing = cdiv(num_tokens, self.block_size) - num_req_blocks\n"
            "            return max(min(missing, self.max_admission_blocks_per_request - held), 0)\n"
            "        return max(num_required_blocks - num_req_blocks, 0)\n",
        ),
    )
