"""Delete the name of a turn only if the session has this turn under it.

A later turn of the same name took its place, and is cleared by itself.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.session.session_controller", "SessionReqNode"),
        "clear",
        (
            "del req_dict[self.req.rid]",
            "if req_dict.get(self.req.rid) is self:\n        del req_dict[self.req.rid]",
        ),
    )
