"""Take a turn that a streaming session refuses out of the session.

It is still scheduled, to end with the refusal, but it never held the session's flag and so must not clear it.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.session.session_controller", "Session"),
        "create_req",
        (
            "new_req.set_finish_with_abort(abort_message)\n",
            "new_req.set_finish_with_abort(abort_message)\n"
            "        if self.streaming:\n"
            "            new_req.session = None\n",
        ),
    )
