"""Transformers' continuous batching, in the script's own process."""

from __future__ import annotations

import json

from harness.dialects.dialect import FILES, Dialect, made_on_the_spot
from reports.schema import Case


def command(case: Case) -> str:
    """The fields of its configuration and the model's folder, as JSON."""
    folder = f"{FILES}/model" if made_on_the_spot(case) else case.engine_config["model"]
    return json.dumps({**json.loads(case.engine_config.get("fields", "{}")), "model": folder})


TRANSFORMERS = Dialect(
    template="transformers.py.j2",
    command=command,
    packages=("torch", "transformers", "peft", "accelerate"),
    in_process=True,
)
