"""A layer: one way to run the same requirements on an engine. A run is a list of layers."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from coldproof.adapters.protocol.cell_traits import meet

EXACT_LAYER, MODEL_LAYER, SERVER_LAYER = "exact", "model", "server"


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the requirements: an engine and its worker.

    `name`: exact (no floating point, so that every wrong block changes the answer), model (a network in process) or
    server (the real server over HTTP). `traits`: it tests the requirements that suit cells with one of these; None: all
    requirements. `cells`: those that it has beside the profile's.
    """

    name: str
    engine: str
    worker: str = "model"
    traits: tuple[str, ...] | None = None
    cells: tuple[str, ...] = ()

    def suits(self, wanted: Collection[str]) -> bool:
        """Return whether this layer tests a requirement. `wanted`: the traits of the cells in which it can be."""
        return meet(self.traits, wanted)
