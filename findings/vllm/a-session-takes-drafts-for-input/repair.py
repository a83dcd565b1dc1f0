"""Cut a session at the last token of its answer, whatever was drafted behind it.

Accepted drafts behind the end of an answer are no tokens of the session. Release 0.33.0 does the same.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.v1.core.sched.scheduler", "Scheduler"),
        "_update_request_as_session",
        (
            "num_computed_tokens = session.num_computed_tokens\n",
            "num_computed_tokens = session.num_computed_tokens = min(\n"
            "        session.num_computed_tokens, session.num_tokens - 1\n"
            "    )\n",
        ),
    )
