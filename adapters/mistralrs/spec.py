"""mistral.rs on a CPU, with the generated models as they are."""

from __future__ import annotations

from coldproof.adapters.mistralrs import engine, setup
from coldproof.adapters.mistralrs.reproducer import MISTRALRS
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.release_package import ReleasePackage

# No minimum hit is documented.
USUAL = (
    CellTrait.BATCHES,
    CellTrait.ADAPTERS,
    CellTrait.CONVERSATIONS,
    CellTrait.ABORTS,
    CellTrait.MIXTURES,
)


def cell(name: str, about: str, *flags: str) -> Cell:
    """Return a cell with these flags."""
    return Cell(name=name, about=about, arguments=flags, traits=USUAL, alike=False, engine="mistralrs")


CELLS = (
    cell("mistralrs", "sequences are kept, sixteen of them"),
    cell("mistralrs-few", "two kept sequences: the others are evicted", setup.KEPT, "2"),
)

ENGINE = EngineSpec(
    name="mistralrs",
    about="mistral.rs",
    title="mistral.rs",
    cells=CELLS,
    start=engine.start,
    package="mistralrs",
    reproduction=MISTRALRS,
    releases=ReleasePackage(name="mistralrs"),
)
