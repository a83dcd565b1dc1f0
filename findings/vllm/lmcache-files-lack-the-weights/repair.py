"""Add the KV format and a digest of the model's weights and configuration to the name that LMCache has for the model.

The name is part of every key, and so of the name of every file.
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
    connector = part("lmcache.integration.vllm.lmcache_mp_connector")

    @wrap(connector, "get_dcp_decorated_model_name", "model_name = vllm_config.model_config.model")
    def _(original: Any, config: Any, *arguments: Any, **options: Any) -> str:
        model = config.model_config
        weights = b"".join(file.read_bytes() for file in sorted(Path(model.model).glob("*.safetensors")))
        digest = hashlib.sha256(model.hf_config.to_json_string().encode() + weights).hexdigest()
        stored = f"{model.dtype}-{config.cache_config.cache_dtype}"
        return f"{original(config, *arguments, **options)}-{stored}-{digest[:16]}"
