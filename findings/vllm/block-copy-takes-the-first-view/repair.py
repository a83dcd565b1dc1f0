"""Tell views of one allocation apart by their shape, strides and type, not by their address alone.

The first view of an address need not cover what the others see.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.worker.utils"),
        "copy_kv_cache_blocks_inplace",
        (
            "key = (cache.device, cache.data_ptr())",
            "key = (cache.device, cache.data_ptr(), cache.shape, cache.stride(), cache.dtype)",
        ),
    )
