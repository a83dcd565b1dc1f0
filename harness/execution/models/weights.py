"""How far the weights of a model are spread, read from its safetensors file without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

WEIGHTS, PROJECTION = "model.safetensors", ".q_proj.weight"
TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def projection_spread(model: Path) -> float | None:
    """Return the standard deviation of the query projections' weights, or None if they cannot be read.

    `model`: a folder. Weights in several files or of other types are not read.
    """
    try:
        with (model / WEIGHTS).open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
            found = [facts for name, facts in header.items() if name.endswith(PROJECTION) and facts["dtype"] in TYPES]
            if not found:
                return None
            first, end = found[0]["data_offsets"]
            file.seek(8 + size + first)
            values = np.frombuffer(file.read(end - first), dtype=TYPES[found[0]["dtype"]])
    except (OSError, ValueError, KeyError, struct.error):
        return None
    if found[0]["dtype"] == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return float(values.astype(np.float64).std())
