"""Give the KV of a streaming session back when a turn comes with another adapter.

The session's slot remembers the adapter of the turn that filled it, by the id that each load has of its own. A turn
with another one begins without KV, as the first turn of a session does.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    session = part("sglang.srt.session.streaming_session", "StreamingSession")
    edit(
        session,
        "take",
        (
            "slot = SessionSlot(kv=req.kv, publishes_prompt=True)\n",
            "slot = SessionSlot(kv=req.kv, publishes_prompt=True)\n    slot.lora_id = req.lora_id\n",
        ),
    )
    edit(
        session,
        "try_match_prefix",
        (
            "req = params.req\n",
            "req = params.req\n"
            "    if slot.lora_id != req.lora_id:\n"
            "        self.release_session(req.session.session_id)\n"
            "        return None\n",
        ),
    )
    edit(
        session,
        "will_lend_record",
        ("and slot.kv.holds_kv", "and slot.kv.holds_kv and slot.lora_id == req.lora_id"),
    )
