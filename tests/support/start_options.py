"""The options of one engine's start, for tests that start or describe an engine without the harness."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import StartOptions


def start_options(
    cell: Cell, *arguments: str, log: Path, model: str = "m", caching: bool = True, adapters: tuple[Path, ...] = ()
) -> StartOptions:
    """Return options with these arguments instead of the cell's."""
    return StartOptions(
        model=model,
        adapters=adapters,
        cell=cell,
        caching=caching,
        arguments=arguments,
        log=log,
        on_process=lambda _process: None,
    )
