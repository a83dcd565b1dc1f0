"""Tell the decoder which adapter computed a prompt, and let it compute the prompt if it has another.

An adapter is known by the contents that were loaded. The decoder reports a full hit to the prefiller then, so that the
latter gives the blocks back.
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

    @wrap(scheduler, "get_num_new_matched_tokens", "actual = self._get_remote_prefill_token_count(len(token_ids))")
    def _(original: Any, self: Any, request: Any, *arguments: Any) -> Any:
        params, own = request.kv_transfer_params or {}, identity(request.lora_request)
        if params.get("do_remote_prefill") and params.get("remote_adapter", own) != own:
            return 0, False
        return original(self, request, *arguments)
