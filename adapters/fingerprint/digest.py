"""The arithmetic: what a token's keys and values depend on, in 64 bits, and how the next token follows from it.

`chain(i) = STEP * chain(i - 1) + leaf(token i, i, seed)` modulo 2^64, where the seed stands for the adapter's content
and the weights' version. It is affine, so a whole prompt is one cumulative sum; the leaves go through a mixer, so that
near-equal tokens, positions and adapters part for good. A wrong read changes the next token in 94 of 95 cases, and the
digests written from then on in all but one of 2^64.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]

MASK = (1 << 64) - 1
STEP = 0xD1342543DE82EF95  # odd, so that it has an inverse modulo 2^64
TOKEN_FACTOR, POSITION_FACTOR = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
TOKEN_KEY, LAYER_KEY, WRONG_KEY = 0xA0761D6478BD642F, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3
FIRST_TOKEN, TOKENS = 32, 95  # printable bytes: an answer survives the way through text that a chat's next turn takes


def mix(values: Digests) -> Digests:
    """Spread every bit over all others (splitmix64's finalizer)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def mix_one(value: int) -> int:
    """The same for one number, in Python's own arithmetic: faster than an array of one."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def seed_of(adapter: str | None, version: int = 0) -> int:
    """What stands for an adapter's content (None: the base model) and the weights' version."""
    said = f"{'base' if adapter is None else f'adapter {adapter}'}, weights {version}"
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "little")


def layer_key(layer: int) -> int:
    """What a layer's slots are masked with, so that one layer's block shows in another's place."""
    return mix_one(LAYER_KEY + layer)


@functools.lru_cache(maxsize=8)
def powers(bits: int) -> tuple[Digests, Digests]:
    """STEP and its inverse to the powers 0 to 2^bits."""
    up, down = np.full((1 << bits) + 1, STEP, np.uint64), np.full((1 << bits) + 1, pow(STEP, -1, 1 << 64), np.uint64)
    up[0] = down[0] = 1
    return np.cumprod(up, dtype=np.uint64), np.cumprod(down, dtype=np.uint64)


def chain(tokens: Sequence[int] | npt.NDArray[np.int64], *, start: int, before: int, seed: int) -> Digests:
    """The digests of tokens at positions `start` and after, behind the digest `before` of the position before them.

    At position 0 `before` is the seed itself.
    """
    count = len(tokens)
    ids = np.asarray(tokens, dtype=np.uint64)
    positions = np.arange(start, start + count, dtype=np.uint64)
    leaves = mix(ids * np.uint64(TOKEN_FACTOR) + positions * np.uint64(POSITION_FACTOR) + np.array([seed], np.uint64))
    up, down = powers(max(6, count.bit_length()))
    sums = np.cumsum(leaves * down[1 : count + 1], dtype=np.uint64) + np.array([before], np.uint64)
    return np.asarray(sums * up[1 : count + 1])


def link(token: int, *, position: int, before: int, seed: int) -> int:
    """The digest of one token: `chain` for a single one."""
    leaf = mix_one((token * TOKEN_FACTOR + position * POSITION_FACTOR + seed) & MASK)
    return (STEP * before + leaf) & MASK


def wrong(found: Digests, expected: Digests, positions: npt.NDArray[np.int64]) -> int:
    """What reads that are not as they should be add to everything computed from them. Never 0 for a single one."""
    told = mix((found ^ expected) + mix(positions.astype(np.uint64) + np.uint64(WRONG_KEY)))
    return int(np.sum(told, dtype=np.uint64)) | 1


def draw(state: int, *, seed: int | None, position: int) -> int:
    """The number that a token is chosen by: of the state alone for a greedy one, of a seed beside it for a sampled."""
    if seed is None:
        return mix_one(state ^ TOKEN_KEY)
    return mix_one(mix_one(state ^ TOKEN_KEY) + mix_one((seed * 2 + 1) * POSITION_FACTOR + position & MASK) & MASK)


def ranked(drawn: int, rank: int) -> int:
    """The token at a rank, 0 the best: all of them in a row, from the drawn one on."""
    return FIRST_TOKEN + (drawn + rank) % TOKENS


def logprob(drawn: int, rank: int) -> np.float32:
    """The score of the token at a rank, in nats; the best has about 0.8 of the probability."""
    return np.float32(-0.2 - 2.0 * rank - (drawn >> 40) / (1 << 24) / 8)


def rank_of(drawn: int, token: int) -> int:
    """The rank of a token; behind all others for one that is never drawn, such as a chat's marks."""
    if FIRST_TOKEN <= token < FIRST_TOKEN + TOKENS:
        return (token - FIRST_TOKEN - drawn) % TOKENS
    return TOKENS + token % TOKENS


def prompt_logprob(before: int, token: int) -> np.float32:
    """The score of a prompt's token behind the digest of those before it, in nats."""
    drawn = draw(before, seed=None, position=0)
    return logprob(drawn, rank_of(drawn, token))
