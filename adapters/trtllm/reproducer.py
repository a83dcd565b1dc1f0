"""How a reproducer uses a TensorRT-LLM server. The user starts it."""

from __future__ import annotations

from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction, attached_command


def cold_note(_engine: RecordedEngine) -> str:
    """Return what the script needs for cold answers: completions have no salts."""
    return "COLD_SERVER must be the address of a second server with enable_block_reuse off."


TRTLLM = Reproduction(
    client="coldproof.adapters.trtllm.script:TrtllmServer",
    command=attached_command,
    settings=lambda _engine: {},
    note=cold_note,
    lacks=("COUNTED", "DRAFTS", "EVENTS"),
)
