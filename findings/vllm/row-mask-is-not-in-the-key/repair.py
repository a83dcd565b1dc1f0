"""Add to a block's key which of its positions are embedding rows.

A position under a token and one under a row differ for the model, even if all else in the block is equal.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    utils = part("vllm.v1.core.kv_cache_utils")

    @wrap(utils, "_gen_prompt_embeds_extra_hash_keys", 'return [("prompt_embeds", embeds_hash)]')
    def _(original: Any, request: Any, start: int, end: int) -> list[Any]:
        mask = request.prompt_is_token_ids
        keys = list(original(request, start, end))
        if keys and mask is not None:
            keys.append(("rows", tuple(i for i, is_token in enumerate(mask[start:end]) if not is_token)))
        return keys
