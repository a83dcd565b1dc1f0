"""Register the blocks of a request that has just finished, as long as it still has a block table.

The finished state says that no further token is sampled. Whether the blocks are still there is what the table says.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==5.23.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("transformers.generation.continuous_batching.cache", "PagedAttentionCache"),
        "mark_complete_blocks",
        (
            "or state.status == RequestStatus.FINISHED:",
            "or any(state.request_id not in one.block_table for one in self.cache_allocators.values()):",
        ),
    )
