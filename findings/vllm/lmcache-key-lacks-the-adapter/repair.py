"""Make the salt of an adapter's request of its own salt, the adapter and the contents of its files.

LMCache keeps apart what has other salts, in memory, in files and between engines. A salt has a limited length and no
special characters, so that it is a digest.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
NEEDS = ("lmcache",)


def install() -> None:
    """Plant the repair."""
    tracker = part("lmcache.integration.vllm.lmcache_mp_metadata", "LMCacheMPRequestTracker")

    @wrap(tracker, "__init__", 'self.cache_salt: str = request.cache_salt or ""')
    def _(original: Any, self: Any, request: Any, *arguments: Any, **options: Any) -> None:
        original(self, request, *arguments, **options)
        if adapter := request.lora_request:
            files = b"".join(file.read_bytes() for file in sorted(Path(adapter.lora_path).glob("adapter_*")))
            own = repr((self.cache_salt, adapter.lora_name, adapter.lora_path)).encode()
            self.cache_salt = hashlib.sha256(own + files).hexdigest()
