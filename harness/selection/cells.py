"""Selects and lists cells, the named configurations of engines. The report has a column for each cell.

A cell declares the requirements that it covers. A requirement that no chosen cell covers still runs in the first cell,
and its verdict there says which evidence is missing, so that no requirement is dropped silently.
"""

from __future__ import annotations

from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.options import UsageError


def cells_named(names: tuple[str, ...]) -> list[Cell]:
    """Return the cells with these names. Raises UsageError for an unknown name."""
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        raise UsageError(f"unknown cell {unknown[0]!r}; --cells list prints all cells")
    return [CELLS[name] for name in names]


def cells_for(requirement_id: str, cells: list[Cell]) -> list[Cell]:
    """Return the chosen cells that cover a requirement, or the first chosen cell if none does."""
    return [cell for cell in cells if cell.covers(requirement_id)] or cells[:1]


def format_cells(engine: str | None = None) -> str:
    """Return one line for each cell, or for each cell of one engine. Raises UsageError if there is none."""
    if engine is not None and engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}: choose one of {', '.join(ENGINES)}")
    shown = {name: cell for name, cell in CELLS.items() if engine is None or fits(cell, engine)}
    if not shown:
        raise UsageError(f"engine {engine!r} has no cells")
    width = max(len(name) for name in shown)
    return "\n".join(f"{name:<{width}}  {cell.about}" for name, cell in shown.items())


def fits(cell: Cell, engine: str) -> bool:
    """Return whether an engine can run a cell with at least one of its workers."""
    return any(cell.fits(engine, worker) for worker in ENGINES[engine].workers)
