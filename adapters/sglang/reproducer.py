"""How a reproducer uses an SGLang server. The user starts it with the run's flags."""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.sglang.weights import updates_flush
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command


def settings(engine: RecordedEngine) -> Mapping[str, object]:
    """Return whether updates of the weights flush the cache."""
    return {"UPDATES_FLUSH": updates_flush(engine.config)}


def command(engine: RecordedEngine) -> str:
    """Return the command of the server, if the run knew it."""
    launched = engine.config.get("launch_command")
    return attached_command(engine) if launched is None else f"python -m sglang.launch_server {launched}"


SGLANG = Reproduction(
    client="coldproof.adapters.sglang.script:SglangServer",
    command=command,
    settings=settings,
)
