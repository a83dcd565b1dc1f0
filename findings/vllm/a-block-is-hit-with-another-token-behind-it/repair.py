"""Let a draft head hit a block only if the token behind it is the one that its writer had there.

Of blocks with one hash, the one whose writer agrees is taken. If none does, nothing behind it is hit, so that it is the
block that vLLM leaves out of a hit. Only groups with layers of a draft head look: only there a position depends on the
token behind it.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    pool = part("vllm.v1.core.block_pool", "BlockPool")
    manager = part("vllm.v1.core.kv_cache_manager", "KVCacheManager")
    with_group = part("vllm.v1.core.kv_cache_utils").make_block_hash_with_group_id

    def follows(this: Any, block: Any, token: int) -> bool:
        """Return whether the writer of a block had this token behind it."""
        writer, end = this.__dict__.get("writers", {}).get(block.block_id, (None, 0))
        return writer is None or (len(writer.all_token_ids) > end and writer.all_token_ids[end] == token)

    @wrap(pool, "cache_full_blocks", "new_full_blocks = blocks[num_cached_blocks:num_full_blocks]")
    def _(original: Any, this: Any, request: Any, blocks: list[Any], *arguments: Any, **options: Any) -> Any:
        bound = dict(zip(("num_cached_blocks", "num_full_blocks", "block_size"), arguments, strict=False)) | options
        writers = this.__dict__.setdefault("writers", {})  # by block: the request, and the block's end in it
        for i in range(bound["num_cached_blocks"], bound["num_full_blocks"]):
            writers[blocks[i].block_id] = request, (i + 1) * bound["block_size"]
        return original(this, request, blocks, *arguments, **options)

    @wrap(manager, "get_computed_blocks", "max_cache_hit_length = request.num_tokens - 1")
    def _(original: Any, self: Any, request: Any) -> Any:
        this, groups = self.block_pool, self.coordinator.eagle_group_ids
        ends = {key: (i + 1) * this.hash_block_size for i, key in enumerate(request.block_hashes)} if groups else {}
        this.reading, this.last = (request, groups, ends), None  # `last`: where the only block to leave out ends
        try:
            return original(self, request)
        finally:
            this.reading = None

    @wrap(pool, "get_cached_block", "cached_blocks.append(block)")
    def _(original: Any, this: Any, key: Any, group_ids: list[int]) -> Any:
        found = original(this, key, group_ids)
        reading = this.__dict__.get("reading")
        if found is None or reading is None:
            return found
        request, groups, ends = reading
        end = ends.get(key)
        if end is None or end >= len(request.all_token_ids):
            return found
        if this.last is not None and end > this.last:
            return None
        token, chosen = request.all_token_ids[end], []
        for group, block in zip(group_ids, found, strict=True):
            held = this.cached_block_hash_to_block._cache[with_group(key, group)]
            alike = held.values() if group in groups and isinstance(held, dict) else (block,)
            agrees = next((one for one in alike if group not in groups or follows(this, one, token)), None)
            if agrees is None:
                this.last = end
            chosen.append(agrees or block)
        return chosen
