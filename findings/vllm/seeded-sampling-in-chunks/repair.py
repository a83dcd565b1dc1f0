"""Set a CPU generator back by its state, for requests in the middle of their prompts.

A generator on a CPU has no offset. Its state before the draw is the same thing.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import edit, part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    runner = part("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
    edit(runner, "_bookkeeping_sync", ("if gen is not None:", 'if gen is not None and gen.device.type != "cpu":'))

    @wrap(runner, "_sample", "self.input_batch.update_async_output_token_ids()")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        count, generators = self.input_batch.num_reqs, self.input_batch.generators
        discarded = [i for i in self.discard_request_mask.np[:count].nonzero()[0].tolist() if i in generators]
        states = {i: generators[i].get_state() for i in discarded if generators[i].device.type == "cpu"}
        sampled = original(self, *arguments, **options)
        for i, state in states.items():
            generators[i].set_state(state)
        return sampled
