"""Let a flush with a timeout ignore the waiting queue of a paused engine, as the flush itself does.

What was retracted waits until generation continues, has no KV, and is computed again.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.managers.scheduler", "Scheduler"),
        "init_running_status",
        (
            "is_fully_idle=self.is_fully_idle,",
            "is_fully_idle=lambda: self.is_fully_idle(ignore_waiting=self._engine_paused),",
        ),
    )
