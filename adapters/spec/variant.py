"""A control variant: a changed configuration of the engine for the diagnosis."""

from __future__ import annotations

import msgspec

from coldproof.adapters.spec.cell import Cell

CACHING, POOL, CHUNKS, TIER = "prefix caching", "a pool this small", "prefill in chunks", "the second tier"


class EngineVariant(msgspec.Struct, frozen=True, kw_only=True):
    """One engine configuration. `removes`: the feature of the case's configuration that this one does not have."""

    name: str
    removes: str
    cell: Cell
