"""Hash an adapter's name and path as one text, which the event then carries.

An event has one text for the adapter, and its documentation says that the hash is made of this text.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    quote = 'return [("lora", lora_request.lora_name, lora_request.lora_path)]'

    @wrap(part("vllm.v1.core.kv_cache_utils"), "_gen_lora_extra_hash_keys", quote)
    def _(original: Any, request: Any) -> list[Any]:
        return [("lora", "\0".join(key[1:])) for key in original(request)]
