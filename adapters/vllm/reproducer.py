"""How a reproducer starts vLLM's server, or another server with the same API."""

from __future__ import annotations

import re
from pathlib import Path

from coldproof.adapters.common import image_model
from coldproof.adapters.protocol import embedding_rows, images
from coldproof.adapters.spec.reproduction import (
    FILES,
    RecordedEngine,
    Reproduction,
    attached_command,
    source_of,
    template_beside,
)
from coldproof.adapters.vllm.cells.cell import VllmCell
from coldproof.adapters.vllm.server import PAIR

LAUNCHER = Path(__file__).with_name("prefill_decode.py")  # not imported: it needs packages that only vLLM brings
IMAGE_MODEL = "image-model"  # the folder that a script writes around the usual model


def needs_worker(engine: RecordedEngine) -> bool:
    """Return whether the cell has layers that only the fingerprint worker has."""
    return isinstance(engine.cell, VllmCell) and engine.cell.only_fingerprint


def note(engine: RecordedEngine) -> str:
    """Return what the server needs in addition to vLLM; an empty string if nothing."""
    if not needs_worker(engine):
        return ""
    return (
        "The server needs Coldproof's fingerprint worker (`pip install .` in a checkout of Coldproof), "
        "because its layers are of kinds that no model this small has."
    )


def launcher(engine: RecordedEngine) -> Path | None:
    """Return the file that starts a pair of servers; None for one server."""
    return LAUNCHER if PAIR in engine.config.get("command", "") else None


def command(engine: RecordedEngine) -> str:
    """Return the engine's command, preceded by its environment, with the model folder and port of the script."""
    line = engine.config.get("command")
    if line is None:
        return attached_command(engine)
    line = re.sub(r"--port \d+", "--port 8000", line)
    if not needs_worker(engine):  # then any model works, and the script does not need Coldproof
        line = re.sub(r"--worker-cls \S+ --additional-config '[^']*' ?", "", line)
    started = launcher(engine)
    if started is not None:
        line = line.replace(f"-m {PAIR}", f"{FILES}/{started.name}")
    line = re.sub(r"--weight-transfer-config '[^']*' ?", "", line)  # the script loads the same weights by a reload
    if engine.generated_model:
        with_images = isinstance(engine.cell, VllmCell) and engine.cell.images
        line = re.sub(r"--model \S+", f"--model {FILES}/{IMAGE_MODEL if with_images else 'model'}", line)
        line = re.sub(r'("method": "draft_model", "model": )"[^"]+"', rf'\1"{FILES}/model"', line)
    return f"{engine.config.get('environment', '')} {line}".strip()


def flags(engine: RecordedEngine) -> str:
    """Return the environment and the flags of an engine that a script starts in its own process."""
    return command(engine).replace("python -m vllm.entrypoints.openai.api_server ", "")


# A server takes token ids and rows, or images, in one prompt only as parts of a chat.
WITH_CONTENT = Reproduction(
    template=Path(__file__).with_name("content.py.j2"),
    command=flags,
    packages=("torch", "vllm"),
    carries=(source_of(embedding_rows), source_of(images), source_of(image_model)),
    in_process=True,
    note=note,
)
OPENAI = Reproduction(
    template=template_beside(__file__), command=command, launcher=launcher, note=note, with_content=WITH_CONTENT
)
