"""Give back the encoder outputs of a request that a failed load sends back to an earlier token.

It starts again before images whose outputs have to fit beside those that it holds of later images. A preemption, which
sends a request back as well, frees them (`Scheduler._preempt_request`).
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
            "request.num_computed_tokens = idx * self.block_size\n",
            "request.num_computed_tokens = idx * self.block_size; self.encoder_cache_manager.free(request)\n",
        ),
    )
