"""Compute rows without an adapter as if its weights were zero.

Their index is -1, which is the last slot to an indexed tensor.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    kernels = part("vllm.lora.ops.torch_ops.lora_ops")
    chosen = "selected_loras = lora_b_weights[lora_indices_tensor].to(dtype=output_tensor.dtype)\n"
    for name in ("bgmv_expand", "bgmv_shrink", "bgmv_expand_slice"):
        edit(kernels, name, (chosen, f"{chosen}    selected_loras[lora_indices_tensor < 0] = 0\n"))
