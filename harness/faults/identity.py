"""Which tokens, and whose, a block is found by."""

from __future__ import annotations

from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, around, module

FAULTS, fault = collector("identity")


@fault("CHAT-1", stands_for="vllm-mlx#384")
def half_a_block_is_hashed(patch: Patch) -> None:
    """A block's hash takes in its first half only, so that prompts which part in the second half share it (a partial
    match taken for a whole one: vllm-mlx#384)."""

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        return original(function, parent, tokens[: len(tokens) // 2], extra)

    around(patch, module("v1.core.kv_cache_utils"), "hash_block_tokens", hashed)


@fault("LORA-4", "SALT-1", stands_for="vllm PR#8240, PR#20981")
def hashes_forget_who_asks(patch: Patch) -> None:
    """A block's hash has neither adapter nor salt in it (vllm PR#8240, PR#20981)."""
    around(patch, module("v1.core.kv_cache_utils"), "generate_block_hash_extra_keys", lambda *_: (None, 0))


@fault("REUSE-1", stands_for="LMCache#1139")
def hashes_differ_each_time(patch: Patch) -> None:
    """A block's hash holds something that no later request repeats (`hash(None)`, LMCache#1139)."""

    def keys(original: Any, request: Any, *rest: Any) -> Any:
        extra, index = original(request, *rest)
        return (*(extra or ()), request.request_id), index

    around(patch, module("v1.core.kv_cache_utils"), "generate_block_hash_extra_keys", keys)
