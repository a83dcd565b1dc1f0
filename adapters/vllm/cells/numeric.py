"""Cells of the arithmetic of a model."""

from __future__ import annotations

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.vllm.cells.cell import VllmCell

NUMERIC_CELLS = (
    VllmCell(
        name="kv-bfloat16",
        about="KV in bfloat16, weights in float32",
        arguments=("--kv-cache-dtype", "bfloat16"),
        traits=(CellTrait.KV_LAYOUT,),
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="kv-fp8",
        about="KV in 8-bit floating point (e4m3), weights in float32; on a CPU it needs AVX-512",
        arguments=("--kv-cache-dtype", "fp8"),
        traits=(CellTrait.KV_LAYOUT,),
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="bfloat16",
        about="weights and KV in bfloat16: if cold answers are deterministic, warm answers must equal them",
        arguments=("--dtype", "bfloat16"),
        traits=(CellTrait.KV_LAYOUT,),
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="weights-fp8",
        about="weights and activations in 8-bit floating point (a scale for each row and token), the rest in bfloat16",
        arguments=("--quantization", "fp8_per_channel", "--dtype", "bfloat16"),
        traits=(CellTrait.KV_LAYOUT,),
        alike=False,
        numeric=True,
    ),
)
