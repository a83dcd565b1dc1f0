"""Detects when a fault makes a difference: when a request hits a block of other tokens, another adapter or another
salt.

A hash that is too short or leaves something out is harmless until two prompts collide. Only the wrong hit counts.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch
from coldproof.adapters.vllm.faults.engine_parts import name_and_path, pool
from coldproof.adapters.vllm.faults.patching import acted, after, after_lookup

Owner = tuple[int, Any, Any]


def block_identity(request: Any, end: int) -> Owner:
    """Return what vLLM's key for the first `end` tokens of a request must distinguish: tokens, adapter and salt."""
    adapter = request.lora_request and name_and_path(request.lora_request)
    return hash(tuple(request.all_token_ids[:end])), adapter, request.cache_salt or None


def count_wrong_hits(patch: Patch) -> None:
    """Count each wrong hit in the first group as an action of the fault."""
    owners: dict[int, Owner] = {}

    @after(patch, pool(), "cache_full_blocks")
    def publish(_result: Any, _this: Any, **kwargs: Any) -> None:
        request, size = kwargs["request"], kwargs["block_size"]
        for i in range(kwargs["num_cached_blocks"], kwargs["num_full_blocks"]):
            owners[id(kwargs["blocks"][i])] = block_identity(request, (i + 1) * size)

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(blocks: Any, _this: Any, _count: int) -> None:
        for block in blocks:
            owners.pop(id(block), None)

    @after_lookup(patch)
    def found(this: Any, request: Any, blocks: Any, _count: int) -> None:
        size = this.coordinator.single_type_managers[0].block_size
        for i, block in enumerate(blocks.blocks[0]):
            if not block.is_null and owners.get(id(block)) != block_identity(request, (i + 1) * size):
                acted()
