"""Loads weights from a folder into a model that vLLM has loaded, without vLLM's own reload.

Two routes use it: a function that vLLM applies to the model, and a backend for weight transfer.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coldproof.adapters.common.weights_digest import WEIGHT_FILES

LOADS_FOLDERS = "load_folder"  # a method that the fingerprint worker's model has in place of parameters
RELOAD = "vllm.model_executor.model_loader.reload"


class NoWeightsError(ValueError):
    """A folder has no weights."""


def files_of(folder: Path) -> list[Path]:
    """Return the files with weights in a folder. Raises NoWeightsError if there are none."""
    files = sorted(folder.glob(WEIGHT_FILES))
    if not files:
        raise NoWeightsError(f"{folder} has no {WEIGHT_FILES}")
    return files


def tensors(files: list[Path]) -> Iterator[tuple[str, Any]]:
    """Yield the names and tensors of weights."""
    load_file = importlib.import_module("safetensors.torch").load_file
    for file in files:
        yield from load_file(file).items()


def change_in_place(model: Any, folder: str, model_config: Any) -> None:
    """Write the weights in a folder into the tensors of the model, and derive again what kernels keep beside them.

    After its start, a model has the tensors of its kernels, which a checkpoint does not fit: vLLM fuses layers, and it
    packs them on a CPU. So its layers are loaded one by one, by vLLM's own functions, and the results copied back.
    """
    files = files_of(Path(folder))
    if hasattr(model, LOADS_FOLDERS):
        model.load_folder(Path(folder))
        return
    reload = importlib.import_module(RELOAD)
    reload.initialize_layerwise_reload(model)
    model.load_weights(tensors(files))
    reload.finalize_layerwise_reload(model, model_config)


def change_to(folder: str, model_config: Any) -> functools.partial[None]:
    """Return the function for vLLM's `apply_model`."""
    return functools.partial(change_in_place, folder=folder, model_config=model_config)
