"""The description of a head that drafts for a model: without weights, as the fingerprint worker computes none."""

from __future__ import annotations

import json
from pathlib import Path

from coldproof.adapters.vllm.cells.cell import EAGLE, MTP

# By method, a family of models that vLLM has such heads for. What it takes for one of multi-token prediction (MTP), it
# finds out by the architecture.
FAMILIES: dict[str, dict[str, object]] = {
    EAGLE: {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    MTP: {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1},
}
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


def draft_head(method: str, model: Path, beside: Path) -> Path:
    """Write the folder of a head with one layer for a model, and return it. Heads have the sizes of their model."""
    sizes = json.loads((model / "config.json").read_text())
    sizes = sizes.get("text_config", sizes)
    config = {name: sizes[name] for name in OF_THE_MODEL if name in sizes} | FAMILIES[method] | {"num_hidden_layers": 1}
    beside.mkdir(parents=True, exist_ok=True)
    (beside / "config.json").write_text(json.dumps(config))
    return beside
