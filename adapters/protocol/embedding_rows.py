"""Ids of embedding rows: what a prompt has where the model gets a row of embeddings instead of a token.

The ids of a prompt name what the model sees at each position: a token, or a row. So two prompts share a prefix exactly
as far as their ids are equal, and requests stay plain data: the values of a row follow from its id. Each value is one
byte, so that every number format is exact.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

FIRST_ROW = 1 << 44  # no vocabulary is that large; ids stay below 2**53, so that every reader of JSON keeps them exact
SEEDS = 1 << 36
VARIANTS = 1 << 8
ZERO_ROW = FIRST_ROW  # a row of zeros that the model gets
NO_ROW = 0  # in `hidden`, under a token: a row of zeros
AFTER_ROWS = 1 << 50
ZERO, STEPS = 128, 64  # the byte of the value 0, and the number of steps from it to the value 1


def row_id(name: str, variant: int = 0) -> int:
    """Return the id of a row. The rows of two names differ in most values.

    `variant`: 0, or the number of the value, counted from 1, in which the row differs from the row of variant 0.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return FIRST_ROW + seed % SEEDS * VARIANTS + variant


def is_row(number: int) -> bool:
    """Return whether an id of a prompt is that of a row."""
    return FIRST_ROW <= number < AFTER_ROWS


def has_rows(prompt: Sequence[int]) -> bool:
    """Return whether a prompt contains rows."""
    return max(prompt, default=0) >= FIRST_ROW and any(map(is_row, prompt))


@functools.lru_cache(maxsize=65536)
def row_bytes(number: int, width: int) -> bytes:
    """Return one byte for each value of a row; those of a row of zeros for other ids."""
    if not is_row(number) or number == ZERO_ROW:
        return bytes([ZERO]) * width
    seed, variant = divmod(number - FIRST_ROW, VARIANTS)
    values = bytearray(hashlib.shake_128(f"row {seed}".encode()).digest(width))
    if variant:
        values[(variant - 1) % width] ^= ZERO  # the value moves by 2
    return bytes(values)
