"""The description of an EAGLE head for a model: without weights, as the fingerprint worker computes none."""

from __future__ import annotations

import json
from pathlib import Path

FAMILY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}  # of those that vLLM has EAGLE heads for
OF_THE_MODEL = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "torch_dtype",
    "vocab_size",
)


def eagle_head(model: Path, beside: Path) -> Path:
    """Write the folder of a head with one layer for a model, and return it. Heads have the sizes of their model."""
    sizes = json.loads((model / "config.json").read_text())
    sizes = sizes.get("text_config", sizes)
    config = {name: sizes[name] for name in OF_THE_MODEL if name in sizes} | FAMILY | {"num_hidden_layers": 1}
    beside.mkdir(parents=True, exist_ok=True)
    (beside / "config.json").write_text(json.dumps(config))
    return beside
