"""How a reproducer runs ONNX Runtime GenAI, in the process of the script."""

from __future__ import annotations

import json
from collections.abc import Mapping

from coldproof.adapters.ortgenai.setup import PACKAGE
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the options of the generator; none if they were not written by a run."""
    try:
        return {"SETTINGS": json.loads(engine.config.get("options", "{}"))}
    except ValueError:
        return {"SETTINGS": {}}


ORTGENAI = Reproduction(
    client="coldproof.adapters.ortgenai.script:OrtGenai",
    command=lambda engine: f"{engine.config.get('engine', '')}  # {engine.config.get('options', '')}",
    settings=settings,
    packages=(PACKAGE, "onnx", "onnx-ir", "torch", "transformers"),
    in_process=True,
    dies_with_it=True,
)
