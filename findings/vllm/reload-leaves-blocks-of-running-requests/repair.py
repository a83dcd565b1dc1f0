"""Publish no block of a request whose adapter has been loaded again.

From then on it computes with other weights than those that its keys name.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""

    @wrap(part("vllm.v1.engine.core", "EngineCore"), "add_lora", "self.model_executor.add_lora(lora_request)")
    def _(original: Any, self: Any, adapter: Any) -> Any:
        for request in self.scheduler.requests.values():
            if request.lora_request is not None and request.lora_request.lora_int_id == adapter.lora_int_id:
                request.adapter_was_replaced = True
        return original(self, adapter)

    @wrap(part("vllm.v1.core.block_pool", "BlockPool"), "cache_full_blocks", "blk.block_hash is not None")
    def _(original: Any, self: Any, request: Any, *arguments: Any, **options: Any) -> None:
        if not hasattr(request, "adapter_was_replaced"):
            original(self, request, *arguments, **options)
