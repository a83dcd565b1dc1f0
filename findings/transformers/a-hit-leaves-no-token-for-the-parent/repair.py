"""Leave two tokens of a prompt to compute where it is asked for several answers.

One of them is computed before the request is forked, and the other one by each answer.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==5.23.0"


def install() -> None:
    """Plant the repair."""
    call = "self.cache.search_prefix_match(state.request_id, state.remaining_prefill_tokens"
    edit(
        part("transformers.generation.continuous_batching.scheduler", "Scheduler"),
        "_infer_request_tokens",
        (f"{call})", f"{call}[: -1 if state.num_children else None])"),
    )
