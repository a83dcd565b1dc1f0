"""The weights of the fingerprint worker, by their digest, and vLLM's own methods for weight transfer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from vllm.v1.worker import gpu_worker

from coldproof.adapters.vllm.releases import weight_transfer_config

DISCARDED = "discarded"  # in place of a digest, after a sleep that discards the weights
# vLLM's methods for a transfer, and what they call. Versions before weight transfer do not have them.
OF_VLLM = (
    "_check_weight_transfer_engine",
    "init_weight_transfer_engine",
    "start_weight_update",
    "_start_weight_update",
    "update_weights",
    "finish_weight_update",
    "shutdown_weight_transfer_engine",
)


class ModelOfFiles(msgspec.Struct, frozen=True):
    """Stands for the model. It has no parameters: `load_folder` reads weights from the files in a folder."""

    load_folder: Callable[[Path], None]


def transfers_weights(worker: type) -> type:
    """Give a worker class the methods with which vLLM's own worker transfers weights."""
    for name in OF_VLLM:
        if hasattr(gpu_worker.Worker, name):
            setattr(worker, name, getattr(gpu_worker.Worker, name))
    return worker


def transfer_engine(config: Any, device: Any, model: ModelOfFiles) -> Any:
    """Return the backend that the configuration names, as vLLM's worker creates it; None without one."""
    chosen = weight_transfer_config(config)
    if chosen is None:
        return None
    return gpu_worker.WeightTransferEngineFactory.create_engine(chosen, config, device, model)


def runner_without_lora_state() -> SimpleNamespace:
    """Return what stands for vLLM's model runner at the end of a transfer: nothing depends on the old weights here."""
    return SimpleNamespace(reset_lora_state=lambda: None)
