"""Put only those rows into a block's key that the model sees, with their positions.

Under a token, the model sees the token. So a row that a prompt carries there must not tell its block from the one that
decode filled, which has no rows. The positions are part of the key, so that the finding about the mask goes, too.
"""

from __future__ import annotations

import hashlib
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
ALSO = ("vllm/row-mask-is-not-in-the-key",)


def install() -> None:
    """Plant the repair."""
    utils = part("vllm.v1.core.kv_cache_utils")

    @wrap(utils, "_gen_prompt_embeds_extra_hash_keys", 'return [("prompt_embeds", embeds_hash)]')
    def _(_original: Any, request: Any, start: int, end: int) -> list[Any]:
        embeds, mask = request.prompt_embeds, request.prompt_is_token_ids
        if embeds is None:
            return []
        rows = [i for i in range(start, min(end, len(embeds))) if mask is None or not mask[i]]
        contents = repr([i - start for i in rows]).encode() + utils.tensor_data(embeds[rows].contiguous())
        return [("prompt_embeds", hashlib.sha256(contents).digest())] if rows else []
