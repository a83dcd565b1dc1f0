"""Let every request compute a block again whose load failed, not only the first one that shares it.

The others would read it in the next step, and the first one may need several steps: its prefill is in chunks.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.sched.scheduler", "Scheduler"),
        "_update_requests_with_invalid_blocks",
        (
            "if block_id in marked_invalid_block_ids:",
            "if marked_invalid_block and block_id in marked_invalid_block_ids:",
        ),
    )
