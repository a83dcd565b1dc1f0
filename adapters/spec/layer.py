"""A layer: one way to run the same requirements on an engine. A run is a list of layers."""

from __future__ import annotations

import msgspec

EXACT_LAYER, MODEL_LAYER, SERVER_LAYER = "exact", "model", "server"


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the requirements: an engine and its worker.

    `name`: exact (no floating point, so that every wrong block changes the answer), model (a network in process) or
    server (the real server over HTTP). `areas`: the first parts of the ids of the requirements that it tests. `cells`:
    those that it has beside the profile's.
    """

    name: str
    engine: str
    worker: str = "model"
    areas: tuple[str, ...] = ("",)
    cells: tuple[str, ...] = ()

    def covers(self, requirement_id: str) -> bool:
        """Return whether this layer tests a requirement."""
        return requirement_id.startswith(self.areas)
