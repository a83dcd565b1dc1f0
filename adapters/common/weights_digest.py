"""The digest that identifies the weights of a model: a hash of its safetensors files.

The harness and the fingerprint worker both name weights by this digest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

WEIGHT_FILES = "*.safetensors"


def weights_digest(folder: Path) -> str:
    """Return twelve hex digits of the hash of the weights. Raises OSError when the folder has none or no file opens."""
    files = sorted(folder.glob(WEIGHT_FILES))
    if not files:
        raise FileNotFoundError(f"{folder} has no {WEIGHT_FILES}")
    state = hashlib.sha256()
    for file in files:
        state.update(file.name.encode())
        with file.open("rb") as opened:
            state.update(hashlib.file_digest(opened, "sha256").digest())
    return state.hexdigest()[:12]
