"""The values by which a script writes a generated model as a GGUF file: see `script/gguf_files.py`."""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.common.gguf import ARCHITECTURES, GEMMA_PARTS, PARTS, WHOLE, metadata
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.spec.reproduction import RecordedEngine


def gguf_values(engine: RecordedEngine, *, readable: bool) -> Mapping[str, object]:
    """Return the values by their names in `script/given.py`. `readable`: printable tokens are their characters."""
    window = engine.cell is not None and engine.cell.model is ModelLayers.WINDOW
    kind = ARCHITECTURES["gemma3_text" if window else "qwen2"]
    parts = GEMMA_PARTS if window else PARTS
    return {
        "KIND": kind,
        "READABLE": readable,
        "VOCABULARY": engine.model.get("vocab_size", 0),
        "METADATA": metadata(dict(engine.model), kind) if engine.generated_model else {},
        "NAMES": {
            **{name.removesuffix(".weight"): ours.removesuffix(".weight") for name, ours in WHOLE.items()},
            "model.layers.": "blk.",
            "self_attn.": "",
            "mlp.": "",
            **parts,
        },
    }
