"""What Coldproof finds otherwise in earlier releases of vLLM, by the release that changed it.

The adapter is written for the newest release. Each function says until which release it is needed.
"""

from __future__ import annotations

import importlib
from typing import Any

BLOCK_SIZES = ("hash_block_size", "cache_hit_alignment_tokens")


def note_block_sizes(cache_config: Any, kv_cache_config: Any) -> None:
    """Copy the sizes that a worker's config must agree on. Before 0.32, the scheduler alone computes them."""
    for name in BLOCK_SIZES:
        if hasattr(kv_cache_config, name):
            setattr(cache_config, name, getattr(kv_cache_config, name))


def allocated_kv_cache(cache_config: Any, kv_cache_config: Any, torch: Any) -> dict[str, Any]:
    """Return a tensor `[blocks, 1, slots per block, ...]` for each layer. Before 0.29, each model runner makes its own.

    `torch`: the module, which Coldproof's own process does not import.
    """
    utils = importlib.import_module("vllm.v1.worker.utils")
    if hasattr(utils, "allocate_kv_cache"):
        layout = cache_config.get_resolved_kv_cache_layout()
        caches: dict[str, Any] = utils.allocate_kv_cache(kv_cache_config, torch.device("cpu"), layout)
        return caches
    specs = {name: group.kv_cache_spec for group in kv_cache_config.kv_cache_groups for name in group.layer_names}
    shared = [(tensor, torch.zeros(tensor.size, dtype=torch.int8)) for tensor in kv_cache_config.kv_cache_tensors]
    return {name: in_slots(raw, specs[name]) for tensor, raw in shared for name in tensor.shared_by}


def in_slots(raw: Any, spec: Any) -> Any:
    """Return a view of a layer's bytes with the slots of its blocks. A state has one slot in each block."""
    slots = 1 if type(spec).__name__ == "MambaSpec" else spec.block_size
    return raw.view(-1, 1, slots, spec.page_size_bytes // slots)


def copy_blocks(scheduled: Any, tensors: list[Any], blocks: int) -> None:
    """Copy the blocks of a step that the scheduler names. Up to 0.24, it names none."""
    if copies := getattr(scheduled, "kv_cache_block_copies", None):
        utils = importlib.import_module("vllm.v1.worker.utils")
        utils.copy_kv_cache_blocks_inplace(tensors, blocks, copies)


def hit_alignment(cache_config: Any) -> int:
    """Return the unit of hits in tokens. Before 0.32, it is the block size."""
    return int(getattr(cache_config, "cache_hit_alignment_tokens", None) or cache_config.block_size)
