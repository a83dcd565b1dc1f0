"""A plugin with which no cell can be opened a second time."""

from __future__ import annotations

from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.session.conductor import ConformanceRun
from coldproof.harness.session.system_under_test import SystemUnderTest

OPEN = ConformanceRun.open_cell


def open_cell(run: ConformanceRun, cell: Cell) -> SystemUnderTest | None:
    """Open a cell, or raise EngineStartError."""
    if cell.name in run.trials.schedule.starts:
        raise EngineStartError("no memory is left")
    return OPEN(run, cell)


ConformanceRun.open_cell = open_cell  # type: ignore[method-assign]
