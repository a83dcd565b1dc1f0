"""What Coldproof finds otherwise in earlier releases of vLLM, by the release that changed it.

The adapter is written for the newest release. Each function says until which release it is needed.
"""

from __future__ import annotations

from typing import Any

BLOCK_SIZES = ("hash_block_size", "cache_hit_alignment_tokens")


def note_block_sizes(cache_config: Any, kv_cache_config: Any) -> None:
    """Copy the sizes that a worker's config must agree on. Before 0.32, the scheduler alone computes them."""
    for name in BLOCK_SIZES:
        if hasattr(kv_cache_config, name):
            setattr(cache_config, name, getattr(kv_cache_config, name))


def hit_alignment(cache_config: Any) -> int:
    """Return the unit of hits in tokens. Before 0.32, it is the block size."""
    return int(getattr(cache_config, "cache_hit_alignment_tokens", None) or cache_config.block_size)
