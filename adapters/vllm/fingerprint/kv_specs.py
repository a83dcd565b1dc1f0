"""Converts a topology to vLLM's KV-cache specs: one per layer, all with the same page size."""

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

from coldproof.adapters.vllm.fingerprint.topology import STATES_AT_BLOCK_ENDS, LayerKind, Layers, Topology

DIGEST_BYTES = 8
DRAFT_LAYER = "draft_model.layers."  # as vLLM names the layers of a draft model
FULL_REQUESTS = 8  # the default pool holds this many requests of maximum length
LEAST_BLOCKS = 2048  # the minimum default pool, which small workloads never fill


def layer_specs(topology: Topology, default_block: int) -> dict[str, tuple[Layers, KVCacheSpec]]:
    """Return layer name -> its row and its spec. vLLM requires names that contain the layer's number.

    Raises ValueError for state layers with their own block size: vLLM's scheduler ends chunks at the engine's block
    size, so it would publish states from the middle of larger blocks.
    """
    if any(row.kind is LayerKind.STATE and row.block not in (None, default_block) for row in topology):
        raise ValueError("state layers use the engine's block size: remove their 'block'")
    largest = max(row.block or default_block for row in topology)
    rows = [row for row in topology for _ in range(row.layers)]
    return {f"layers.{i}.attn": (row, spec_of(row, row.block or default_block, largest)) for i, row in enumerate(rows)}


def draft_layers(layers: dict[str, tuple[Layers, KVCacheSpec]], block: int) -> dict[str, tuple[Layers, KVCacheSpec]]:
    """Return the layer of a draft model, with full attention, in the form of `layers`, which come before it."""
    row = Layers(kind=LayerKind.FULL, layers=1)
    return {f"{DRAFT_LAYER}{len(layers)}.attn": (row, spec_of(row, block, block))}


def spec_of(row: Layers, block: int, largest: int) -> KVCacheSpec:
    """Return the spec of one layer. Smaller blocks have wider slots, so that all pages are equal in size.

    A digest is stored at the start of its slot. Raises ValueError if the block does not divide the largest one.
    """
    if largest % block:
        raise ValueError(f"a block of {block} tokens does not divide the largest block, of {largest} tokens")
    width = largest // block
    common: dict[str, Any] = {"block_size": block, "num_kv_heads": 1, "dtype": torch.float32}
    match row.kind:
        case LayerKind.FULL:
            return FullAttentionSpec(head_size=width, **common)
        case LayerKind.WINDOW:
            return SlidingWindowSpec(head_size=width, sliding_window=row.window, **common)
        case LayerKind.MLA:
            return MLAAttentionSpec(head_size=2 * width, **common)
        case LayerKind.WINDOW_MLA:
            # Since 0.27, vLLM merges layers with equal windows into one block size unless their data types differ, as
            # they do in DeepSeek-V4: SlidingWindowMLASpec.merge compares no block sizes.
            return SlidingWindowMLASpec(
                head_size=2 * width, sliding_window=row.window, cache_dtype_str=f"blocks of {block} tokens", **common
            )
        case LayerKind.STATE:
            return MambaSpec(
                block_size=block,
                shapes=((1,),),
                dtypes=(torch.int64,),
                page_size_padded=largest * DIGEST_BYTES,
                mamba_cache_mode=STATES_AT_BLOCK_ENDS,
            )


def pool_bytes(specs: dict[str, KVCacheSpec], config: VllmConfig) -> int:
    """Return the bytes of a pool for FULL_REQUESTS requests of maximum length, at least LEAST_BLOCKS blocks."""
    needed = sum(int(spec.max_memory_usage_bytes(config)) for spec in specs.values())
    page = sum(int(spec.page_size_bytes) for spec in specs.values())
    return max(LEAST_BLOCKS * page, FULL_REQUESTS * needed)
