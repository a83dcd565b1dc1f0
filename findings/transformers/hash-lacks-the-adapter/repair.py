"""Add the active adapter, with a digest of its files, to what a block's hash is made of.

The hash is made in the step that computes the block, so that the active adapter is the one that computed it. Without an
adapter, hashes stay as they are.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import edit, part, wrap

RELEASES = "==5.23.0"
FOLDER = "transformers.generation.continuous_batching.cache_allocators"


def install() -> None:
    """Plant the repair."""
    peft = part("transformers.integrations.peft", "PeftAdapterMixin")
    manager = part("transformers.generation.continuous_batching.continuous_api", "ContinuousBatchingManager")
    allocator = part(f"{FOLDER}.cache_allocator", "CacheAllocator")
    tuner = part("peft.tuners.tuners_utils", "BaseTunerLayer")

    @wrap(peft, "load_adapter", 'hotswap: bool | Literal["auto"] = "auto",')
    def _(original: Any, self: Any, folder: str, *arguments: Any, **options: Any) -> Any:
        done = original(self, folder, *arguments, **options)
        files = b"".join(file.read_bytes() for file in sorted(Path(folder).glob("adapter_*")))
        contents, name = getattr(self, "adapter_contents", {}), options.get("adapter_name") or "default"
        self.adapter_contents = {**contents, name: hashlib.sha256(files).hexdigest()}
        return done

    @wrap(manager, "_create_batch_processor", "paged_attention_cache = PagedAttentionCache(")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        processor = original(self, *arguments, **options)
        for one in processor.cache.cache_allocators.values():
            one.model = self.model
        return processor

    def adapter_numbers(self: Any) -> list[int]:
        layer = next((one for one in self.model.modules() if isinstance(one, tuner)), None)
        if layer is None or layer.disable_adapters or not layer.active_adapters:
            return []
        contents = getattr(self.model, "adapter_contents", {})
        text = repr([(name, contents.get(name)) for name in layer.active_adapters])
        return list(hashlib.sha256(text.encode()).digest())

    allocator.adapter_numbers = adapter_numbers
    for name, call in (
        ("match_prefix_blocks", "current_hash, tokens"),
        ("mark_complete_blocks", "parent_hash, tokens"),
    ):
        edit(allocator, name, (f"compute_block_hash({call})", f"compute_block_hash({call} + self.adapter_numbers())"))
