"""How a reproducer starts and uses mlx-lm's server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldproof.adapters.mlx.setup import ENVIRONMENT, KEPT, UNNAMED
from coldproof.adapters.spec.reproduction import FILES, RecordedEngine, Reproduction, own_command

PROGRAM = re.compile(r"^mlx_lm\.server")


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files; empty if the case has none."""
    return own_command(engine, PROGRAM)


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
