"""Publish all units of a part of a block that can be hit, as the events of a second tier do.

The last unit alone has a parent within the same block, which was never published and cannot be hit.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    pool = part("vllm.v1.core.block_pool")

    @wrap(pool.BlockPool, "cache_partial_block", "block_hashes=[maybe_convert_block_hash(block_hash)],")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        names = ("request", "block", "num_tokens", "kv_cache_group_id", "block_size")
        given = {**dict(zip(names, arguments, strict=False)), **options}
        done = original(self, *arguments, **options)
        event: Any = self.kv_event_queue[-1] if self.kv_event_queue else None
        request, end, unit = given["request"], given["num_tokens"], self.hash_block_size
        ours = isinstance(event, pool.BlockStored) and event.block_size == unit < given["block_size"]
        if (
            done is None
            or not ours
            or event.block_hashes != [pool.maybe_convert_block_hash(self._get_partial_block_hash(request, end))]
        ):
            return done
        start = (end - 1) // given["block_size"] * given["block_size"]
        keys, image = [], 0
        for first in range(start, end, unit):
            extra, image = pool.generate_block_hash_extra_keys(request, first, first + unit, image)
            keys.append(extra)
        event.block_hashes = [*map(pool.maybe_convert_block_hash, request.block_hashes[start // unit : end // unit])]
        event.parent_block_hash = (
            pool.maybe_convert_block_hash(request.block_hashes[start // unit - 1]) if start else None
        )
        event.token_ids = request.all_token_ids[start:end]
        event.extra_keys = pool.to_event_extra_keys(keys)
        return done
