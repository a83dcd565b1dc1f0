"""The arithmetic of digests: 64 bits that depend on all that a token's keys and values depend on.

`chain(i) = MULTIPLIER * chain(i - 1) + leaf(token i, i, seed)` modulo 2^64. The seed stands for the adapter's content
and the weights. In place of the token id, an embedding row has a digest of its values, and a position of an image a
digest of the pixels and the position. The formula is affine, so the digests of a whole prompt are one cumulative sum.
A mixer makes the leaves of similar tokens, positions and seeds different. The next token is a function of the last
digest. A wrong read changes the next token in 94 of 95 cases, and later digests in all but one of 2^64 cases.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]  # embedding rows or pooled vectors, `[positions, values]`
Pixels = npt.NDArray[np.float32]  # what the model sees of an image, `[channels, rows, columns]`

MASK = (1 << 64) - 1
MULTIPLIER = 0xD1342543DE82EF95  # odd, so that it has an inverse modulo 2^64
TOKEN_FACTOR, POSITION_FACTOR = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
TOKEN_KEY, LAYER_KEY, WRONG_KEY = 0xA0761D6478BD642F, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3
POOLED_KEY = 0x1D8E4E27C47D124F
CLASSIFY = "classify"
FIRST_TOKEN, TOKENS = 32, 95  # printable bytes: the next turn of a chat contains an answer as text


def mix(values: Digests) -> Digests:
    """Return mixed values: each input bit affects all output bits (the finalizer of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_one(value: int) -> int:
    """Return `mix` of one number, in Python's arithmetic, which is faster than an array of length one."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def seed_of(adapter: str | None, weights: str | None = None) -> int:
    """Return the seed for an adapter's content (None: the base model) and for weights (None: those of the start)."""
    version = "0" if weights is None else weights
    text = f"{'base' if adapter is None else f'adapter {adapter}'}, weights {version}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def layer_key(layer: int) -> int:
    """Return the mask of a layer's slots. It makes a block of one layer wrong in another layer."""
    return mix_one(LAYER_KEY + layer)


@functools.lru_cache(maxsize=8)
def powers(bits: int) -> tuple[Digests, Digests]:
    """Return the powers 0 to 2^bits of MULTIPLIER and of its inverse."""
    up = np.full((1 << bits) + 1, MULTIPLIER, np.uint64)
    down = np.full((1 << bits) + 1, pow(MULTIPLIER, -1, 1 << 64), np.uint64)
    up[0] = down[0] = 1
    return np.cumprod(up, dtype=np.uint64), np.cumprod(down, dtype=np.uint64)


def chain(tokens: Sequence[int] | npt.NDArray[np.int64], *, start: int, before: int, seed: int) -> Digests:
    """Return the digests of tokens from position `start` on. `before`: the digest of the previous position.

    At position 0, `before` is the seed.
    """
    count = len(tokens)
    ids = np.asarray(tokens, dtype=np.uint64)
    positions = np.arange(start, start + count, dtype=np.uint64)
    leaves = mix(ids * np.uint64(TOKEN_FACTOR) + positions * np.uint64(POSITION_FACTOR) + np.array([seed], np.uint64))
    up, down = powers(max(6, count.bit_length()))
    sums = np.cumsum(leaves * down[1 : count + 1], dtype=np.uint64) + np.array([before], np.uint64)
    return np.asarray(sums * up[1 : count + 1])


def chain_one(token: int, *, position: int, before: int, seed: int) -> int:
    """Return the digest of one token, as `chain` does for several."""
    leaf = mix_one((token * TOKEN_FACTOR + position * POSITION_FACTOR + seed) & MASK)
    return (MULTIPLIER * before + leaf) & MASK


def row_digests(rows: Rows) -> list[int]:
    """Return what stands for each embedding row in place of a token id: 64 bits that depend on all its values."""
    values = np.ascontiguousarray(rows, np.float32)
    return [int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:8]) for row in values]


def pixel_digest(pixels: Pixels) -> int:
    """Return the digest of an image as the model sees it."""
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(pixels, np.float32).tobytes()).digest()[:8])


def encoder_output(pixels: int, tower: int) -> int:
    """Return what stands for the encoder's output: a digest of an image's digest and of the tower, by its seed."""
    return mix_one((pixels + mix_one(tower)) & MASK)


def position_digest(image: int, offset: int) -> int:
    """Return what stands for a position within an image in place of a token id."""
    return mix_one((image + (offset + 1) * TOKEN_FACTOR) & MASK)


def wrong_read_drift(found: Digests, expected: Digests, positions: npt.NDArray[np.int64]) -> int:
    """Return the number that wrong reads add to everything that is computed from them. It is never 0."""
    differences = mix((found ^ expected) + mix(positions.astype(np.uint64) + np.uint64(WRONG_KEY)))
    return int(np.sum(differences, dtype=np.uint64)) | 1


def draw(state: int, *, seed: int | None, position: int) -> int:
    """Return the number that selects a token. `seed`: None for greedy decoding, which uses only the state."""
    if seed is None:
        return mix_one(state ^ TOKEN_KEY)
    return mix_one(mix_one(state ^ TOKEN_KEY) + mix_one((seed * 2 + 1) * POSITION_FACTOR + position & MASK) & MASK)


def pooled_rows(states: Digests, task: str) -> Rows:
    """Return the pooled vector of each state: the eight bytes of a number that depends on the state and the task, each
    as a fraction of 256, which float32 represents exactly. A class has one value of three bytes, as scores must.
    """
    key = mix_one(POOLED_KEY + sum(task.encode()))
    numbers = mix(np.asarray(states, np.uint64) ^ np.uint64(key))
    if task == CLASSIFY:
        return (numbers >> np.uint64(40)).astype(np.float32).reshape(-1, 1)
    return np.ascontiguousarray(numbers, "<u8").view(np.uint8).reshape(-1, 8).astype(np.float32) / np.float32(256)


def token_at_rank(drawn: int, rank: int) -> int:
    """Return the token at a rank (0: the best). The ranks follow the order of the tokens, starting at the drawn one."""
    return FIRST_TOKEN + (drawn + rank) % TOKENS


def logprob(drawn: int, rank: int) -> np.float32:
    """Return the logprob of the token at a rank, in nats. The best token has a probability of about 0.8."""
    return np.float32(-0.2 - 2.0 * rank - (drawn >> 40) / (1 << 24) / 8)


def rank_of(drawn: int, token: int) -> int:
    """Return the rank of a token. Tokens that are never drawn, such as chat markers, rank after all others."""
    if FIRST_TOKEN <= token < FIRST_TOKEN + TOKENS:
        return (token - FIRST_TOKEN - drawn) % TOKENS
    return TOKENS + token % TOKENS


def prompt_logprob(before: int, token: int) -> np.float32:
    """Return the logprob of a prompt token, in nats. `before`: the digest of the previous position."""
    drawn = draw(before, seed=None, position=0)
    return logprob(drawn, rank_of(drawn, token))
