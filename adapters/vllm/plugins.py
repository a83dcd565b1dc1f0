"""Functions of Coldproof that the vLLM engines of one run call at their start, as general plugins of vLLM.

The entry point is in a folder of the run that only its engines have on their import path.
"""

from __future__ import annotations

import importlib
import json
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from coldproof.adapters.common.entry_points import entry_point, write_entry_point
from coldproof.adapters.common.score_noise import VARIABLE, NoiseKind, NoiseSource, parse

GROUP = "vllm.general_plugins"
TRANSFER_BACKEND = "coldproof_folder"  # reads weights from a folder
TRANSFER_MODULE, TRANSFER_CLASS = "coldproof.adapters.vllm.weight_transfer", "FolderTransfer"
DIGESTS, KEEP_DIGESTS = "coldproof_digests", "coldproof.adapters.vllm.fingerprint.images:keep_digests"
TRANSFER_FLAGS = ("--weight-transfer-config", json.dumps({"backend": TRANSFER_BACKEND}))


def register_transfer_backend() -> None:
    """Register the backend for weight transfer in this process. A second call has no effect."""
    factory: Any = importlib.import_module("vllm.distributed.weight_transfer.factory").WeightTransferEngineFactory
    if TRANSFER_BACKEND not in factory._registry:
        factory.register_engine(TRANSFER_BACKEND, TRANSFER_MODULE, TRANSFER_CLASS)


def transfer_plugin(folder: Path) -> Path:
    """Write the entry point that registers the backend in a server, and return its folder."""
    register = register_transfer_backend
    write_entry_point(folder, GROUP, TRANSFER_BACKEND, f"{register.__module__}:{register.__name__}")
    return folder


def digest_plugin(folder: Path) -> Path:
    """Write the entry point by which a server's scheduler leaves digests of images for the fingerprint worker, which
    runs in a process of its own. Return its folder.
    """
    write_entry_point(folder, GROUP, DIGESTS, KEEP_DIGESTS)
    return folder


def register_plugin(folder: Path, name: str, function: str, variables: dict[str, str]) -> AbstractContextManager[None]:
    """Return a context in which every vLLM that starts calls `function` (`module:name`).

    `variables` are set in the environment of these engines.
    """
    return entry_point(folder, GROUP, name, function, variables)


def install_noise() -> None:
    """Patch vLLM so that its models add the noise that the environment variable describes while it is set.

    A second call has no effect. The fingerprint worker adds its own noise (fingerprint/sampler.py).
    """
    processor: Any = importlib.import_module("vllm.model_executor.layers.logits_processor").LogitsProcessor
    original = processor.forward
    if hasattr(original, "source_of"):
        return
    sources: dict[int, NoiseSource] = {}

    def source_of(layer: Any) -> NoiseSource | None:
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        known = sources.get(id(layer))
        if known is None or known.noise != parse(text):
            sources[id(layer)] = NoiseSource(parse(text))
        return sources[id(layer)]

    def forward(layer: Any, head: Any, hidden: Any, *rest: Any, **named: Any) -> Any:
        logits = original(layer, head, hidden, *rest, **named)
        source = source_of(layer)
        if logits is None or source is None:
            return logits
        batch = hidden.detach().float().cpu().numpy().tobytes() if source.noise.kind is NoiseKind.BATCH else b""
        noise = source.draw((int(logits.shape[0]), int(logits.shape[1])), batch)
        return logits + logits.new_tensor(noise.astype(np.float32))

    forward.source_of = source_of  # type: ignore[attr-defined]  # shows that the patch is installed
    processor.forward = forward
