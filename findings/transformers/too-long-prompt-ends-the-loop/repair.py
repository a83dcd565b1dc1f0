"""Fail the request that needs most, where nothing can be scheduled and nothing can be given back.

The others then go on. It would otherwise be the only one that could, and it does not fit alone.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==5.23.0"


def install() -> None:
    """Plant the repair."""
    processor = part("transformers.generation.continuous_batching.continuous_api", "ContinuousBatchProcessor")

    def fail_the_longest(self: Any) -> None:
        state = max(self.scheduler.active_requests.values(), key=lambda one: one.current_len())
        self._handle_request_error(ValueError("the request does not fit into the cache"), state)
        self.scheduler.finish_request(state.request_id)

    processor.fail_the_longest = fail_the_longest
    edit(
        processor,
        "prepare_next_batch",
        (
            'raise RuntimeError("No requests can be scheduled and no requests can be offloaded.")',
            "self.fail_the_longest()",
        ),
    )
