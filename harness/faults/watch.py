"""Tells when a fault makes a difference: when a request hits a block of other tokens, or of other people.

Hashes that are too short or too forgetful do no harm as long as nobody meets; what counts is the wrong hit.
"""

from __future__ import annotations

from typing import Any

from harness.faults.patching import Patch, acted, around, manager, pool

Owner = tuple[int, Any, Any]


def owner(request: Any, end: int) -> Owner:
    """What vLLM's key for a request's first `end` tokens ought to tell apart: the tokens, the adapter and the salt."""
    lora = request.lora_request
    asked = None if lora is None else (lora.lora_name, lora.lora_path)
    return hash(tuple(request.all_token_ids[:end])), asked, request.cache_salt or None


def watch_hits(patch: Patch) -> None:
    """Have each wrong hit in the first group count as the fault's action."""
    owners: dict[int, Owner] = {}

    def publish(original: Any, held: Any, **named: Any) -> None:
        original(held, **named)
        request, size = named["request"], named["block_size"]
        for i in range(named["num_cached_blocks"], named["num_full_blocks"]):
            owners[id(named["blocks"][i])] = owner(request, (i + 1) * size)

    def new_blocks(original: Any, held: Any, count: int) -> Any:
        blocks = original(held, count)
        for block in blocks:
            owners.pop(id(block), None)
        return blocks

    def found(original: Any, held: Any, request: Any) -> Any:
        result = original(held, request)
        size = held.coordinator.single_type_managers[0].block_size
        for i, block in enumerate(result[0].blocks[0]):
            if not block.is_null and owners.get(id(block)) != owner(request, (i + 1) * size):
                acted()
        return result

    around(patch, pool(), "cache_full_blocks", publish)
    around(patch, pool(), "get_new_blocks", new_blocks)
    around(patch, manager(), "get_computed_blocks", found)
