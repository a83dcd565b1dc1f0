"""How a reproducer starts and uses MAX's server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from coldproof.adapters.max.setup import ENVIRONMENT
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, own_command

PROGRAM = re.compile(r"^(\w+=\w+ )?max serve")


def command(engine: RecordedEngine) -> str:
    """Return the server's command with the script's own files; empty if the case has none."""
    return own_command(engine, PROGRAM)


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return the command of the server, with its variables."""
    variables = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    started = PROGRAM.sub(r"\1python -m max._entrypoints.pipelines serve", command(engine))
    return {"COMMAND": f"{variables} {started}" if started else ""}


MAX = Reproduction(
    client="coldproof.adapters.max.script:MaxServer",
    command=command,
    settings=settings,
    packages=("max[serve]",),
    started=lambda engine: bool(command(engine)),
)
