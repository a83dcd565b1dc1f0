"""Let a request compute an image to its end, and give it back then, also where a drafter reads a token ahead.

An image that does not fit beside the one before it ends the step before its first token, not the drafter's look-ahead
earlier. The drafter takes the embedding of a token where an image is not encoded yet, as the model runners do already.
The image before is given back at its last token: what a drafter reads ahead lies behind it.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    scheduler = part("vllm.v1.core.sched.scheduler", "Scheduler")
    edit(
        scheduler,
        "_try_schedule_encoder_inputs",
        ("if num_computed_tokens + shift_computed_tokens < start_pos:", "if num_computed_tokens < start_pos:"),
        (
            """num_new_tokens = start_pos - (
                    num_computed_tokens + shift_computed_tokens
                )
            else:""",
            """num_new_tokens = start_pos - num_computed_tokens
            else:""",
        ),
    )
    edit(
        scheduler,
        "_free_encoder_inputs",
        ("spec_lookahead = self.num_prefill_lookahead", "spec_lookahead = 0"),
    )
