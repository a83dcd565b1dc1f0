"""A control that changes the engine instead of the workload, and what such a control takes away."""

from __future__ import annotations

import msgspec

from harness.cell import Cell

CACHING, POOL, CHUNKS, TIER = "prefix caching", "a pool this small", "prefill in chunks", "the second tier"


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One engine configuration. `removes`: what the case's own has and this one has not."""

    name: str
    removes: str
    cell: Cell
