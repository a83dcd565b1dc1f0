"""Computes a block's hash as a subscriber does, from the fields of its own event and its parent's hash.

The rule is the one that vLLM documents. `vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`: the algorithm over
(parent's hash, token ids, extra keys); the root is the algorithm over the seed (`init_none_hash`).
`vllm/config/cache.py`: `sha256` is SHA-256 over a pickle, `sha256_cbor` over canonical CBOR.
`vllm/distributed/kv_events.py`, `extra_keys`: they are published without tags, but the hash uses `("lora", name)` and
`("cache_salt", salt)`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable

from coldproof.adapters.protocol.kv_events import HashRule

Hasher = Callable[[object], bytes]
ExtraKeys = tuple[tuple[str, str], ...] | None


def hasher(rule: HashRule) -> Hasher | None:
    """Return the algorithm of a rule; None if it is not implemented here (the xxhash ones need a package)."""
    return {"sha256": over_pickle, "sha256_cbor": over_cbor}.get(rule.algorithm)


def over_pickle(value: object) -> bytes:
    """Return SHA-256 over a pickle of the newest protocol."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def over_cbor(value: object) -> bytes:
    """Return SHA-256 over canonical CBOR."""
    return hashlib.sha256(cbor(value)).digest()


def block_hash(algorithm: Hasher, parent: bytes, tokens: tuple[int, ...], extra: ExtraKeys) -> bytes:
    """Return the hash of one block."""
    return algorithm((parent, tokens, extra))


def tagged(lora_name: str | None, extra_keys: tuple[str, ...]) -> ExtraKeys:
    """Return published extra keys with the tags that the hash uses. The adapter name comes first, then the salt."""
    names = extra_keys[:1] if lora_name is not None else ()
    keys = [("lora", name) for name in names] + [("cache_salt", salt) for salt in extra_keys[len(names) :]]
    return tuple(keys) or None


def cbor(value: object) -> bytes:
    """Encode the input of a block hash as canonical CBOR (RFC 8949). Raises TypeError for types that do not occur."""
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
    raise TypeError(f"a block hash has no values of type {type(value).__name__}")


def head(major: int, count: int) -> bytes:
    """Encode a CBOR head in its shortest form."""
    if count < 24:
        return bytes([major << 5 | count])
    for form, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if count < 1 << 8 * size:
            return bytes([major << 5 | form]) + count.to_bytes(size, "big")
    raise TypeError(f"{count} is too large for CBOR")
