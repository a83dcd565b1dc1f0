"""How a reproducer runs Transformers' continuous batching, in the process of the script."""

from __future__ import annotations

import json

from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction, template_beside


def command(engine: RecordedEngine) -> str:
    """Return the fields of its configuration and the model's folder, as JSON."""
    folder = f"{FILES}/model" if engine.generated_model else engine.config.get("model", "MODEL")
    recorded = engine.config.get("fields", "{}")
    try:
        fields = dict(json.loads(recorded))
    except (TypeError, ValueError):  # it was not written by a run
        fields = {"fields": recorded}
    return json.dumps({**fields, "model": folder})


TRANSFORMERS = Reproduction(
    template=template_beside(__file__),
    command=command,
    packages=("torch", "transformers", "peft", "accelerate"),
    in_process=True,
)
