"""LoRA adapters in the format of mlx-lm: the same matrices, transposed and under other names."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

PEFT, MLX = "adapter_model.safetensors", "adapters.safetensors"
CONFIG = "adapter_config.json"
PREFIX = "base_model.model."  # of PEFT's names


def write_adapter(source: Path, target: Path, *, layers: int) -> None:
    """Write a PEFT adapter for mlx-lm. `layers`: of the model.

    mlx-lm multiplies by `lora_a` from the right, and names no tensor `weight` (mlx_lm/tuner/lora.py). Raises OSError,
    KeyError or ValueError if the source is no adapter that can be written so, and ImportError without safetensors.
    """
    files: Any = importlib.import_module("safetensors.numpy")  # Coldproof runs without it, and so do other engines
    config = json.loads((source / CONFIG).read_text())
    tensors = {}
    for name, values in files.load_file(source / PEFT).items():
        module, side, _ = name.removeprefix(PREFIX).rsplit(".", 2)
        tensors[f"{module}.{side.lower()}"] = values.T.copy()
    modules = sorted({name.split(".", 3)[3].rsplit(".", 1)[0] for name in tensors})  # behind model.layers.N.
    parameters = {"rank": config["r"], "scale": config["lora_alpha"] / config["r"], "dropout": 0.0, "keys": modules}
    target.mkdir(parents=True, exist_ok=True)
    files.save_file(tensors, target / MLX)
    written = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": parameters}
    (target / CONFIG).write_text(json.dumps(written))
