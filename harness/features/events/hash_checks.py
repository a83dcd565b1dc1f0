"""Checks that a block's hash follows from the fields of its own event, so that a subscriber can look up a prompt.

The rule is the one that vLLM documents. `vllm/v1/core/kv_cache_utils.py`, `hash_block_tokens`: the algorithm over
(parent's hash, token ids, extra keys); the root is the algorithm over the seed (`init_none_hash`).
`vllm/config/cache.py`: `sha256` is SHA-256 over a pickle, `sha256_cbor` over canonical CBOR.
`vllm/distributed/kv_events.py`, `extra_keys`: they are published without tags, but the hash uses `("lora", name)` and
`("cache_salt", salt)`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator

import msgspec

from coldproof.adapters.protocol.kv_events import HashRule
from coldproof.harness.history.kv_events import Block
from coldproof.harness.history.records import History
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.expected_hits import View, view
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass

Hasher = Callable[[object], bytes]
ExtraKeys = tuple[tuple[str, str], ...] | None


class Computed(msgspec.Struct, frozen=True):
    """A published block and the hash that we computed for it."""

    block: Block
    hash: str

    @property
    def agrees(self) -> bool:
        """Return whether the hashes are equal. The published one may be cut to its last digits."""
        return self.hash.endswith(self.block.hash)


@check(
    "hashes",
    order=210,
    fails="A block hash that does not follow from the fields of its own event.",
)
def check_hashes(history: History) -> list[Finding]:
    """Return a finding for the first block whose hash does not follow from its fields; none if the rule is unknown."""
    wrong = next((one for one in computed(history) if not one.agrees), None)
    if wrong is None:
        return []
    stored = f"KV events: block {wrong.block.hash} was stored with {wrong.block}"
    rule = f"by the engine's own rule, the hash of these fields is {wrong.hash[-len(wrong.block.hash) :]}"
    return [Finding(checker="hashes", failure_class=FailureClass.API, sentence=f"{stored}; {rule}.")]


def computed(history: History) -> list[Computed]:
    """Return every block whose hash can be computed, in the order of the events."""
    seen = view(history)
    if seen is None or seen.events.rule is None or not history.shape.uniform:
        return []
    algorithm = hasher(seen.events.rule)
    return [] if algorithm is None else list(compute(seen, algorithm, algorithm(seen.events.rule.seed)))


def compute(seen: View, algorithm: Hasher, root: bytes) -> Iterator[Computed]:
    """Compute the hash of each block from its parent's hash.

    After a wrong hash, go on from the published one, because a wrong hash would make all later ones wrong as well. If
    the published one is also cut short, the chain ends there.
    """
    whole: dict[str | None, bytes] = {None: root}
    old = {old_block.block.place for old_block in seen.events.before}
    for block in seen.cache.blocks.values():
        if not block.tokens or block.place in seen.cache.untold or block.parent not in whole:
            continue
        made = block_hash(algorithm, whole[block.parent], block.tokens, tagged(block.lora_name, block.extra_keys))
        one = Computed(block, made.hex())
        if one.agrees:
            whole[block.hash] = made
        elif len(block.hash) == len(one.hash):
            whole[block.hash] = bytes.fromhex(block.hash)
        if block.place not in old:  # an old block was checked with the run that stored it
            yield one


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
