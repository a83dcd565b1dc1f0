"""How a reproducer uses an LMDeploy server. The user starts it."""

from __future__ import annotations

from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command


def cold_note(_engine: RecordedEngine) -> str:
    """Return what the script needs for cold answers: the engine has no salts."""
    return "COLD_SERVER must be the address of a second server with prefix caching off."


LMDEPLOY = Reproduction(
    client="coldproof.adapters.lmdeploy.script:LmdeployServer",
    command=attached_command,
    settings=lambda _engine: {},
    note=cold_note,
    lacks=("COUNTED", "DRAFTS", "EVENTS"),
)
