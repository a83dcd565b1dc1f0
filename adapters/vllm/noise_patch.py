"""Adds noise to the logits of vLLM's models if an environment variable requests it."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from coldproof.adapters.common.score_noise import VARIABLE, NoiseKind, NoiseSource, parse


def install_noise() -> None:
    """Patch vLLM so that its models add the noise that the environment variable describes while it is set.

    A second call has no effect. The fingerprint worker adds its own noise (fingerprint/noisy_scores.py).
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
