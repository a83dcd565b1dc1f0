"""The capabilities that an engine has by its sizes and by the run around it: cold answers, and another cell."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.options import SAME_ENGINE, Options

SECOND = Support(True, "a second engine without the prefix cache gives them")
SALTED = Support(True, "no request before had the salt of such a request")


def given_capabilities(engine: Engine, cell: Cell, options: Options) -> dict[Capability, Support]:
    """Return what is known about an engine beside what its adapter reports.

    Without a second engine and without salts, cold answers are as the adapter says, and batches without the cache are
    not possible.
    """
    found: dict[Capability, Support] = {}
    slots = engine.shape.adapter_slots
    if slots is not None:
        found[Capability.ADAPTER_SLOTS] = Support(True, f"adapter slots: {slots}")
    if cell.twin:
        found[Capability.OTHER_IMPLEMENTATION] = Support(True, f"in the cell {cell.twin}")
    beside = options.oracle != SAME_ENGINE
    if beside or engine.capabilities[Capability.CACHE_SALT].present is True:
        found |= dict.fromkeys((Capability.COLD_ANSWERS, Capability.WITHOUT_CACHE), SECOND if beside else SALTED)
    return found
