"""Put a digest of the adapter's files into the key of an image that its tower encodes.

The key has its name, which stays when its contents change.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""

    @wrap(part("vllm.v1.engine.input_processor", "InputProcessor"), "_get_mm_identifier", "lora_request.lora_name}:")
    def _(original: Any, self: Any, mm_hash: str, adapter: Any) -> str:
        key: str = original(self, mm_hash, adapter)
        if key == mm_hash:
            return key
        files = sorted(Path(adapter.lora_path).glob("adapter_*"))
        return f"{hashlib.sha256(b''.join(file.read_bytes() for file in files)).hexdigest()}:{key}"
