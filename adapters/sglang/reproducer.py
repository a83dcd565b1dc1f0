"""How a reproducer uses an SGLang server. The user starts it with the run's command or flags."""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.sglang.setup import PROGRAM
from coldproof.adapters.sglang.weights import updates_flush
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command, own_command


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return whether updates of the weights flush the cache."""
    return {"UPDATES_FLUSH": updates_flush(engine.config)}


def command(engine: RecordedEngine) -> str:
    """Return the command of the server, if the run knew it: it started the server, or its user told it."""
    launched = engine.config.get("launch_command")
    if launched is not None:
        return f"python -m sglang.launch_server {launched}"
    return own_command(engine, PROGRAM) or attached_command(engine)


SGLANG = Reproduction(
    client="coldproof.adapters.sglang.script:SglangServer",
    command=command,
    settings=settings,
)
