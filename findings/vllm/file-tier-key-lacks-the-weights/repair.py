"""Add the contents of the weights and the model's configuration to the name of the folder.

The configuration is the one with overrides, such as other rope settings. Both are part of the format that is compared
and hashed already.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    config = part("vllm.distributed.kv_transfer.kv_connector.v1.offloading.config")

    def identity(model: Any) -> str:
        files = sorted(Path(model.model).glob("*.safetensors"))
        weights = b"".join(file.read_bytes() for file in files)
        return hashlib.sha256(model.hf_config.to_json_string().encode() + weights).hexdigest()

    config.model_identity = identity
    edit(
        config,
        "build_offloading_config",
        (
            'dtype=str(cache_dtype).removeprefix("torch."),',
            'dtype=str(cache_dtype).removeprefix("torch.") + "-" + model_identity(vllm_config.model_config),',
        ),
    )
