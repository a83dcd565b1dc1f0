"""What the specification of an engine refuses."""

from __future__ import annotations

import pytest

from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec


def test_cells_of_another_engine_are_refused() -> None:
    """A run would have nothing to test, and say only that."""
    cell = Cell(name="pebble", about="a cell", engine="default")
    with pytest.raises(ValueError, match="can run none of its cells: cell 'pebble' belongs to engine default, not to"):
        EngineSpec(name="pebble", about="an engine", cells=(cell,))
