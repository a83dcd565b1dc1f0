"""A topology in vLLM's own terms: one KV-cache spec a layer, all with pages of one size."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from adapters.fingerprint.topology import Kind, Layers, Topology

DIGEST_BYTES = 8
FULL_REQUESTS = 8
LEAST_BLOCKS = 2048  # a pool that small workloads never fill, where the flags do not say how large


def layer_specs(topology: Topology, default_block: int) -> dict[str, tuple[Layers, KVCacheSpec]]:
    """Layer name -> its row and its spec. vLLM wants names with the layer's number in them.

    Raises ValueError for a state with blocks of its own: vLLM's scheduler ends chunks at the engine's block size, and
    would publish states from the midst of larger ones.
    """
    if any(row.kind is Kind.STATE and row.block not in (None, default_block) for row in topology):
        raise ValueError("states are kept at the ends of the engine's own blocks: leave their block out")
    largest = max(row.block or default_block for row in topology)
    rows = [row for row in topology for _ in range(row.layers)]
    return {f"layers.{i}.attn": (row, spec_of(row, row.block or default_block, largest)) for i, row in enumerate(rows)}


def spec_of(row: Layers, block: int, largest: int) -> KVCacheSpec:
    """One layer's. Slots of smaller blocks are wider, so that pages come out equal; a digest lies at a slot's start.

    Raises ValueError where blocks do not divide the largest one.
    """
    if largest % block:
        raise ValueError(f"blocks of {block} tokens do not divide those of {largest}")
    wide = largest // block
    halves: dict[str, Any] = {"block_size": block, "num_kv_heads": 1, "dtype": torch.float32}
    match row.kind:
        case Kind.FULL:
            return FullAttentionSpec(head_size=wide, **halves)
        case Kind.WINDOW:
            return SlidingWindowSpec(head_size=wide, sliding_window=row.window, **halves)
        case Kind.MLA:
            return MLAAttentionSpec(head_size=2 * wide, **halves)
        case Kind.WINDOW_MLA:
            return SlidingWindowMLASpec(head_size=2 * wide, sliding_window=row.window, **halves)
        case Kind.STATE:
            return MambaSpec(
                block_size=block,
                shapes=((1,),),
                dtypes=(torch.int64,),
                page_size_padded=largest * DIGEST_BYTES,
                mamba_cache_mode="align",
            )


def pool_bytes(specs: dict[str, KVCacheSpec], config: VllmConfig) -> int:
    """Room for several requests of full length, by vLLM's own reckoning. Never less than LEAST_BLOCKS."""
    needed = sum(int(spec.max_memory_usage_bytes(config)) for spec in specs.values())
    page = sum(int(spec.page_size_bytes) for spec in specs.values())
    return max(LEAST_BLOCKS * page, FULL_REQUESTS * needed)
