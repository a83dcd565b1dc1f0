"""How a reproducer runs llama-cpp-python, in the process of the script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from coldproof.adapters.llamapython.setup import WEIGHTS, fields
from coldproof.adapters.spec.gguf_values import gguf_values
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction


def recorded(line: str) -> dict[str, Any]:
    """Return the fields of a case; none if they were not written by a run."""
    try:
        return fields(shlex.split(line)) if line != "none" else {}
    except ValueError:
        return {}


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the fields of the server's models, and how the script writes their files."""
    return {
        "SETTINGS": recorded(engine.config.get("fields", "none")),
        "MODEL_FILE": WEIGHTS,
        **gguf_values(engine, readable=True),
    }


LLAMAPYTHON = Reproduction(
    client="coldproof.adapters.llamapython.script:LlamaPython",
    command=lambda engine: f"{engine.config.get('command', '')}  # {engine.config.get('fields', '')}",
    settings=settings,
    packages=("llama-cpp-python[server]",),
    in_process=True,
    dies_with_it=True,
)
