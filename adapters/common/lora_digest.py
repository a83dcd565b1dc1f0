"""The digest that identifies a LoRA adapter's content: a hash of the bytes of its files.

The harness and the fingerprint worker both name contents by this digest. If they computed it in different ways, every
answer with an adapter would look stale.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def content_digest(folder: Path) -> str:
    """Return twelve hex digits of the hash of the files. Raises OSError when one of them cannot be read."""
    state = hashlib.sha256()
    for name in ADAPTER_FILES:
        state.update((folder / name).read_bytes())
    return state.hexdigest()[:12]
