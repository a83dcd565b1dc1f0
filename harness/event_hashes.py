"""Computes a block's hash as a subscriber would: from the fields of its own event and its parent's hash.

The rule is vLLM's documented one. `vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`: the algorithm over (parent's
hash, token ids, extra keys), the root being the algorithm over the seed (`init_none_hash`). `vllm/config/cache.py`:
`sha256` is SHA-256 over a pickle, `sha256_cbor` over canonical CBOR. `vllm/distributed/kv_events.py`, `extra_keys`:
they are published untagged, while the hash takes `("lora", name)` and the salt as `("cache_salt", salt)`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable

from adapters.kv_events import HashRule

Hasher = Callable[[object], bytes]
ExtraKeys = tuple[tuple[str, str], ...] | None


def hasher(rule: HashRule) -> Hasher | None:
    """The algorithm of a rule, or None for one that is not repeated here (the xxhash ones are of a package)."""
    return {"sha256": over_pickle, "sha256_cbor": over_cbor}.get(rule.algorithm)


def over_pickle(value: object) -> bytes:
    """SHA-256 over the newest pickle."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def over_cbor(value: object) -> bytes:
    """SHA-256 over canonical CBOR."""
    return hashlib.sha256(cbor(value)).digest()


def block_hash(algorithm: Hasher, parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys) -> bytes:
    """One block's."""
    return algorithm((parent, tokens, extra))


def tagged(lora_name: str | None, extra_keys: tuple[str, ...]) -> ExtraKeys:
    """What was published untagged, with the tags that the hash takes: the adapter's name comes first, then the salt."""
    names = extra_keys[:1] if lora_name is not None else ()
    keys = [("lora", name) for name in names] + [("cache_salt", salt) for salt in extra_keys[len(names) :]]
    return tuple(keys) or None


def cbor(value: object) -> bytes:
    """Canonical CBOR (RFC 8949) of what a block's hash is made of; nothing else occurs. Raises TypeError for it."""
    match value:
        case None:
            return b"\xf6"
        case int():
            return head(0, value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case tuple():
            return head(4, len(value)) + b"".join(map(cbor, value))
    raise TypeError(f"no part of a block's hash: {type(value).__name__}")


def head(major: int, count: int) -> bytes:
    """A CBOR head in its shortest form."""
    if count < 24:
        return bytes([major << 5 | count])
    for form, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if count < 1 << 8 * size:
            return bytes([major << 5 | form]) + count.to_bytes(size, "big")
    raise TypeError(f"{count} is no token id")
