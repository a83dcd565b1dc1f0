"""Where a model's config.json lies: in the model's folder, or beside its GGUF file."""

from __future__ import annotations

from pathlib import Path

CONFIG, GGUF = "config.json", ".gguf"


def model_folder(model: str) -> Path:
    """Return the folder of a model's config.json, which may lack one beside a GGUF file."""
    return Path(model).parent if model.endswith(GGUF) else Path(model)
