"""Load an adapter in place beside the old one, under another number.

Requests that run keep the number, and so the tensors, with which they began. Later requests get the new one. So what a
running request publishes under the old adapter's key is the old adapter's.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
ALSO = ("vllm/reload-leaves-blocks-of-running-requests",)


def install() -> None:
    """Plant the repair."""
    import msgspec

    request = part("vllm.v1.request", "Request")
    core = part("vllm.v1.engine.core", "EngineCore")
    loads: dict[int, int] = {}

    def number(original: int) -> int:
        return original + (loads.get(original, 0) << 20)

    def numbered(adapter: Any) -> Any:
        if number(adapter.lora_int_id) == adapter.lora_int_id:
            return adapter
        return msgspec.structs.replace(adapter, lora_int_id=number(adapter.lora_int_id), load_inplace=False)

    @wrap(core, "add_lora", "self.model_executor.add_lora(lora_request)")
    def _(original: Any, self: Any, adapter: Any) -> Any:
        loads[adapter.lora_int_id] = loads.get(adapter.lora_int_id, -1) + 1
        return original(self, numbered(adapter))

    @wrap(core, "remove_lora", "self.model_executor.remove_lora(lora_id)")
    def _(original: Any, self: Any, adapter: int) -> Any:
        return original(self, number(adapter))

    @wrap(request, "from_engine_core_request", "lora_request=request.lora_request")
    def _(original: Any, cls: Any, new: Any, hasher: Any) -> Any:
        if new.lora_request:
            new.lora_request = numbered(new.lora_request)
        return original(cls, new, hasher)
