"""Block hashes follow the documented rule: canonical CBOR by the RFC's own examples, tags, chains."""

from __future__ import annotations

import hashlib

import pytest

from coldproof.adapters.protocol.kv_events import HashRule
from coldproof.harness.features.events.hash_checks import block_hash, cbor, hasher, over_cbor, over_pickle, tagged


@pytest.mark.parametrize(
    ("value", "expected"),
    [  # RFC 8949, appendix A
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (100, "1864"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"),
        (None, "f6"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ((), "80"),
        ((1, (2, 3), (4, 5)), "8301820203820405"),
    ],
)
def test_cbor(value: object, expected: str) -> None:
    """Each value has its shortest encoding."""
    assert cbor(value).hex() == expected


@pytest.mark.parametrize("value", [1.5, [1], 2**64])
def test_a_value_that_no_hash_has_is_refused(value: object) -> None:
    """Such a value is refused, not encoded in some way."""
    with pytest.raises(TypeError):
        cbor(value)


def test_hash_of_a_block() -> None:
    """The algorithm is applied to parent, tokens and extra keys."""
    assert block_hash(over_cbor, b"p", (1, 2), None) == hashlib.sha256(bytes.fromhex("83417082 0102f6")).digest()
    assert block_hash(over_pickle, b"p", (1, 2), None) != block_hash(over_pickle, b"p", (1, 2), (("lora", "a"),))


@pytest.mark.parametrize(
    ("lora", "keys", "expected"),
    [
        (None, (), None),
        (None, ("red",), (("cache_salt", "red"),)),
        ("tenant", ("tenant",), (("lora", "tenant"),)),
        ("red", ("red", "red"), (("lora", "red"), ("cache_salt", "red"))),
    ],
)
def test_tags(lora: str | None, keys: tuple[str, ...], expected: object) -> None:
    """An adapter's name and a salt of the same spelling have different tags."""
    assert tagged(lora, keys) == expected


def test_an_unsupported_algorithm_has_no_function() -> None:
    """Such an algorithm has no function, rather than another algorithm's."""
    assert hasher(HashRule("xxhash_cbor", "0")) is None
    assert hasher(HashRule("sha256", "0")) is over_pickle
