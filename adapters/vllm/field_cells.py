"""The cells for the scripts of public bug reports, which harness/power compares with the suites."""

from __future__ import annotations

import msgspec

from coldproof.adapters.spec.engine_spec import MODEL, FieldCells
from coldproof.adapters.vllm.cells.cell import FINGERPRINT, VllmCell
from coldproof.adapters.vllm.cells.every import CELLS

BLOCK = 32
NAMED = {cell.name: cell for cell in CELLS}


def pool_cell(count: int) -> VllmCell:
    """Return the default cell with a pool of `count` usable blocks."""
    arguments = ("--num-gpu-blocks-override", str(count + 1), "--max-model-len", str(count * BLOCK))
    return msgspec.structs.replace(NAMED["tight"], name=f"pool of {count} blocks", arguments=arguments)


FIELD_CELLS = FieldCells(
    plain=NAMED["default"],
    pool=pool_cell,
    groups={MODEL: NAMED["sliding-window"], FINGERPRINT: NAMED["groups-five"]},
)
