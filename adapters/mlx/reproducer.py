"""How a reproducer starts and uses mlx-lm's server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldproof.adapters.mlx.setup import ENVIRONMENT, KEPT, UNNAMED
from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction

PROGRAM = re.compile(r"^mlx_lm\.server")


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files; empty if the case has none."""
    words = re.sub(r"--port \d+", "--port 8000", engine.config.get("command", ""))
    if engine.generated_model:
        words = re.sub(r"--(model|draft-model) \S+", rf"--\1 {FILES}/model", words)
    return words if PROGRAM.match(words) else ""


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the command of the server, and that of one which keeps no sequence."""
    own = {**ENVIRONMENT, "HF_HUB_CACHE": f"{FILES}/hub"}
    variables = " ".join(f"{name}={value}" for name, value in own.items())
    started = PROGRAM.sub(f"{variables} python -m mlx_lm server", command(engine))
    unnamed = engine.cell is not None and UNNAMED in engine.cell.arguments
    return {"NAMED": not unnamed, "COMMAND": started, "COLD_COMMAND": f"{started} {KEPT} 0" if started else ""}


MLX = Reproduction(
    client="coldproof.adapters.mlx.script:MlxServer",
    command=command,
    settings=settings,
    packages=("mlx-lm",),
    started=lambda engine: bool(command(engine)),
)
