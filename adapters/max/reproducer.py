"""How a reproducer starts and uses MAX's server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldproof.adapters.max.setup import ENVIRONMENT
from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction

PROGRAM = re.compile(r"^max serve")


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files; empty if the case has none."""
    words = re.sub(r"--port \d+", "--port 8000", engine.config.get("command", ""))
    if engine.generated_model:
        words = re.sub(r"--model \S+", f"--model {FILES}/model", words)
    return words if PROGRAM.match(words) else ""


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the command of the server, with its variables."""
    variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    started = PROGRAM.sub("python -m max._entrypoints.pipelines serve", command(engine))
    return {"COMMAND": f"{variables} {started}" if started else ""}


MAX = Reproduction(
    client="coldproof.adapters.max.script:MaxServer",
    command=command,
    settings=settings,
    packages=("max[serve]",),
    started=lambda engine: bool(command(engine)),
)
