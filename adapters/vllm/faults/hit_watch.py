"""Detects when a fault makes a difference: when a request hits a block of other tokens, another adapter, another salt
or other embedding rows.

A hash that is too short or leaves something out is harmless until two prompts collide. Only the wrong hit counts.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch
from coldproof.adapters.vllm.faults.engine_parts import name_and_path, pool
from coldproof.adapters.vllm.faults.patching import acted, after, after_lookup

Owner = tuple[int, Any, Any, Any]


def block_identity(request: Any, end: int) -> Owner:
    """Return what vLLM's key for the first `end` tokens of a request must distinguish: tokens, adapter, salt, rows."""
    adapter = request.lora_request and name_and_path(request.lora_request)
    return hash(tuple(request.all_token_ids[:end])), adapter, request.cache_salt or None, embedding_rows(request, end)


def embedding_rows(request: Any, end: int) -> Any:
    """Return the embedding rows that the model gets among the first `end` positions of a request; None without rows."""
    if request.prompt_embeds is None:
        return None
    rows, mask = request.prompt_embeds[:end].float().numpy(), request.prompt_is_token_ids
    shown = [place for place in range(len(rows)) if mask is None or not mask[place]]
    return tuple(shown), rows[shown].tobytes()


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
