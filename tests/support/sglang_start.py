"""The options with which an SGLang server is started in tests."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.sglang.cells import CELLS
from coldproof.adapters.spec.engine_spec import StartOptions


def options(*arguments: str, caching: bool = True, adapters: int = 1) -> StartOptions:
    """Return the options of a start with these words in the cell."""
    return StartOptions(
        model="/models/tiny",
        adapters=tuple(Path(f"/adapters/{number}") for number in range(adapters)),
        cell=CELLS[0],
        caching=caching,
        arguments=arguments,
        log=Path("/logs/sglang.log"),
        on_process=lambda _process: None,
    )
