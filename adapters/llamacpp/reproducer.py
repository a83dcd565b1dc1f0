"""How a reproducer starts and uses llama.cpp's server: with the package xllamacpp, or a server that runs already."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coldproof.adapters.llamacpp.llama_server import parsed
from coldproof.adapters.spec.gguf_values import gguf_values
from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files, with one adapter for each content, in their order."""
    words = re.sub(r"--port \d+", "--port 8000", engine.config.get("command", ""))
    words = re.sub(r" --lora \S+", "", words)
    words = re.sub(r"--slot-save-path \S+", f"--slot-save-path {FILES}/slots", words)
    if engine.generated_model:
        words = re.sub(r"--(model|mmproj) (?:\S*/)?", rf"--\1 {FILES}/", words)  # a finding's command has no folders
    return words + "".join(f" --lora {shlex.quote(f'{FILES}/adapter-{content}.gguf')}" for content in engine.contents)


def recorded(line: str) -> dict[str, Any]:
    """Return the parameters of a server's command; none if it was not written by a run."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # a quote is not closed
        return {}
    return parsed(words) if "--model" in words else {}


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the parameters of the server, and how the script writes its model."""
    found = recorded(command(engine))
    found.pop("port", None)
    return {
        "SETTINGS": found,
        "MODEL_FILE": Path(found.get("model.path", "model.gguf")).name,
        "WIDTH": engine.model.get("hidden_size", 0),
        **gguf_values(engine, readable="--mmproj" in engine.config.get("command", "")),
    }


LLAMACPP = Reproduction(
    client="coldproof.adapters.llamacpp.script:LlamaServer",
    command=command,
    settings=settings,
    packages=("xllamacpp",),
    started=lambda _engine: True,
    dies_with_it=True,
)
