"""Publish an event for each run of neighbouring blocks that are kept.

An event has the tokens of all blocks from its first to its last, so that no block between them may be missing.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    pool = part("vllm.v1.core.block_pool", "BlockPool")
    names = (
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
        "kv_cache_group_id",
        "block_mask",
    )

    @wrap(pool, "cache_full_blocks", "end_token_idx = num_full_blocks * block_size")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        given = {"block_mask": None, **dict(zip(names, arguments, strict=False)), **options}
        first, mask = given["num_cached_blocks"], given["block_mask"]
        blocks = given["blocks"][first : given["num_full_blocks"]]
        kept = [not block.is_null and (mask is None or mask[i]) for i, block in enumerate(blocks)]
        at = first
        for is_kept, run in groupby(kept):
            end = at + len(list(run))
            if is_kept:
                original(self, **{**given, "num_cached_blocks": at, "num_full_blocks": end, "block_mask": None})
            at = end
