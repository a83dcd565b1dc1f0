"""The values of embedding rows, by the ids in a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coldproof.adapters.protocol.embedding_rows import STEPS, ZERO, row_bytes

Rows = npt.NDArray[np.float32]


def row_values(numbers: Sequence[int], width: int) -> Rows:
    """Return the values for the ids of a prompt, `[positions, width]`: those of rows, and zeros for other ids."""
    found = b"".join(row_bytes(number, width) for number in numbers)
    values = np.frombuffer(found, np.uint8).reshape(len(numbers), width)
    return ((values.astype(np.float32) - ZERO) / STEPS).astype(np.float32)
