"""How a reproducer runs Transformers' continuous batching, in the process of the script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction


def fields(engine: RecordedEngine) -> dict[str, Any]:
    """Return the fields of its configuration and the model's folder."""
    folder = f"{FILES}/model" if engine.generated_model else engine.config.get("model", "MODEL")
    recorded = engine.config.get("fields", "{}")
    try:
        found = dict(json.loads(recorded))
    except (TypeError, ValueError):  # it was not written by a run
        found = {"fields": recorded}
    return {**found, "model": folder}


def command(engine: RecordedEngine) -> str:
    """Return the fields of its configuration and the model's folder, as JSON."""
    return json.dumps(fields(engine))


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the fields of its configuration."""
    return {"SETTINGS": fields(engine)}


TRANSFORMERS = Reproduction(
    client="coldproof.adapters.transformers.script:Engines",
    command=command,
    settings=settings,
    packages=("torch", "transformers", "peft", "accelerate"),
    in_process=True,
)
