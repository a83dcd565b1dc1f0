"""What an adapter's content is: the bytes of its files. The harness names contents by it, and so does the fingerprint
worker; were they to differ, every answer under an adapter would look stale.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def content_digest(folder: Path) -> str:
    """Twelve hex digits over the files. Raises OSError when one of them cannot be read."""
    state = hashlib.sha256()
    for name in ADAPTER_FILES:
        state.update((folder / name).read_bytes())
    return state.hexdigest()[:12]
