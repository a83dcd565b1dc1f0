"""Run the draft model also if one request of the step is near the limit of the context.

The draft model masks positions beyond the limit itself. What it leaves out, it leaves out for all requests of the step,
whose blocks are published without its KV.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""

    @wrap(
        part("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
        "_input_fits_in_drafter",
        "num_drafter_query_tokens =",
    )
    def _(_original: Any, _self: Any, metadata: Any) -> bool:
        return metadata is not None
