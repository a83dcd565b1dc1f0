"""Tell the decoder which adapter computed a prompt, and keep what another one computed out of its cache.

An adapter is known by the contents that were loaded. The request itself goes on with what was computed for it, as one
that runs while its adapter is replaced.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    scheduler = part("vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler", "NixlPullConnectorScheduler")
    contents: dict[int, str] = {}

    def digest(adapter: Any) -> str:
        files = sorted(Path(adapter.lora_path).glob("adapter_*"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def identity(adapter: Any) -> str:
        return "" if adapter is None else contents.get(adapter.lora_int_id) or digest(adapter)

    @wrap(part("vllm.v1.engine.core", "EngineCore"), "add_lora", "self.model_executor.add_lora(lora_request)")
    def _(original: Any, self: Any, adapter: Any) -> Any:
        contents[adapter.lora_int_id] = digest(adapter)
        return original(self, adapter)

    @wrap(scheduler, "request_finished", "remote_blocks_expiry_time=blocks_expiry_time,")
    def _(original: Any, self: Any, request: Any, *arguments: Any) -> Any:
        delayed, params = original(self, request, *arguments)
        return delayed, params and {**params, "remote_adapter": identity(request.lora_request)}

    @wrap(part("vllm.v1.core.block_pool", "BlockPool"), "cache_full_blocks", "blk.block_hash is not None")
    def _(original: Any, self: Any, request: Any, *arguments: Any, **options: Any) -> None:
        own = identity(request.lora_request)
        if (request.kv_transfer_params or {}).get("remote_adapter", own) == own:
            original(self, request, *arguments, **options)
