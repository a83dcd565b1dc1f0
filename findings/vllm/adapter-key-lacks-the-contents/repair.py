"""Put a digest of an adapter's files into the keys of its blocks.

The digest is that of the load which was the newest when the request arrived: what a path had before is another adapter.
An adapter that no call has loaded is read when its first request arrives.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    contents: dict[int, str] = {}

    def digest(adapter: Any) -> str:
        files = sorted(Path(adapter.lora_path).glob("adapter_*"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    @wrap(part("vllm.v1.engine.core", "EngineCore"), "add_lora", "self.model_executor.add_lora(lora_request)")
    def _(original: Any, self: Any, adapter: Any) -> Any:
        contents[adapter.lora_int_id] = digest(adapter)
        return original(self, adapter)

    @wrap(part("vllm.v1.core.kv_cache_utils"), "_gen_lora_extra_hash_keys", 'return [("lora", lora_request.lora_name')
    def _(original: Any, request: Any) -> list[Any]:
        if not (keys := original(request)):
            return list(keys)
        if not hasattr(request, "adapter_contents"):
            number = request.lora_request.lora_int_id
            request.adapter_contents = contents.get(number) or digest(request.lora_request)
        return [(*key[:-1], f"{key[-1]}#{request.adapter_contents}") for key in keys]
