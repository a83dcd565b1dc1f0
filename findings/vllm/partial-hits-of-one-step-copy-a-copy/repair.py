"""Copy the blocks of a step one after the other, so that a copy of a copy has what the first one brought.

All at once, each source is read before any target is written. Two requests of one step can hit the same part of a
block: the second one finds the first one's copy, which is entered before it is made.

Where a copy takes the first view of an allocation alone, no such copy is right. Each view is copied by itself here.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
ALSO = ("vllm/block-copy-takes-the-first-view",)


def install() -> None:
    """Plant the repair."""

    @wrap(part("vllm.v1.worker.utils"), "copy_kv_cache_blocks_inplace", "blocks[dst] = blocks[src]")
    def _(original: Any, kv_caches: Any, num_blocks: int, copies: Any) -> None:
        caches = list(kv_caches)
        for one in copies or ():
            for cache in caches:
                original([cache], num_blocks, [one])
