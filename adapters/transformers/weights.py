"""New weights for a Transformers model: copied into its parameters while the generation loop is paused.

This is what `ContinuousBatchingManager.pause` is for: a trainer changes the shared model, and the loop goes on. Call
the functions only while it is paused.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

from coldproof.adapters.common.weights_digest import WEIGHT_FILES
from coldproof.adapters.protocol.engine import RequestRefused

BASE_LAYER = ".base_layer"  # PEFT puts the parameters of a layer with adapters one level deeper
OF_ADAPTERS = ".lora_"


def base_parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of the base model by their names in a checkpoint."""
    return {
        name.replace(BASE_LAYER, ""): parameter
        for name, parameter in model.named_parameters()
        if OF_ADAPTERS not in name
    }


def load_weights(model: Any, path: str) -> None:
    """Copy the weights in a folder into the model. Raises RequestRefused if they are not those of such a model."""
    files = sorted(Path(path).glob(WEIGHT_FILES))
    if not files:
        raise RequestRefused(404, f"{path} has no {WEIGHT_FILES}")
    load_file, torch = importlib.import_module("safetensors.torch").load_file, importlib.import_module("torch")
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    parameters = base_parameters(model)
    missing = [n for n, p in parameters.items() if n not in tensors or tensors[n].shape != p.shape]
    if missing:
        raise RequestRefused(400, f"the weights in {path} lack {len(missing)} parameters, for example {missing[0]}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    wait_for_device(model)


def wait_for_device(model: Any) -> None:
    """Wait until a GPU has done what was started. Continuous batching computes in a stream of its own, which does not
    wait for copies of new weights.
    """
    if model.device.type == "cuda":
        importlib.import_module("torch").cuda.synchronize(model.device)


def checksum(model: Any) -> str:
    """Return a digest of the base model's parameters."""
    state, torch = hashlib.sha256(), importlib.import_module("torch")
    for name, parameter in sorted(base_parameters(model).items()):
        state.update(name.encode())
        state.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
