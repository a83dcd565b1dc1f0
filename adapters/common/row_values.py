"""The values of embedding rows, by their ids. Each value has eight bits, so that every number format is exact."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coldproof.adapters.protocol.embedding_rows import is_row, seed_and_variant

Rows = npt.NDArray[np.float32]
ZERO, STEPS = 128, 64  # the byte of the value 0, and the number of steps from it to the value 1


@functools.lru_cache(maxsize=65536)
def row_bytes(row: int, width: int) -> bytes:
    """Return one byte for each value of a row."""
    seed, variant = seed_and_variant(row)
    values = bytearray(hashlib.shake_128(f"row {seed}".encode()).digest(width))
    if variant:
        values[(variant - 1) % width] ^= ZERO  # the value moves by 2
    return bytes(values)


def row_values(numbers: Sequence[int], width: int) -> Rows:
    """Return the values for the ids of a prompt, `[positions, width]`: those of rows, and zeros for other ids."""
    nothing = bytes([ZERO]) * width
    found = b"".join(row_bytes(number, width) if is_row(number) else nothing for number in numbers)
    values = np.frombuffer(found, np.uint8).reshape(len(numbers), width)
    return ((values.astype(np.float32) - ZERO) / STEPS).astype(np.float32)
