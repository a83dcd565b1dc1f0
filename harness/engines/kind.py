"""What the harness has to know of an engine: its cells, how to start it, what its controls change.

The adapter itself lives in `adapters/` and knows nothing of this. See docs/adding-an-engine.md.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from adapters.base import Engine
from adapters.process import EngineProcess
from harness.cell import Cell
from harness.variant import Variant


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: a model folder, the folders of all adapters that are going to be used, a cell's arguments with the
    user's behind them, and where the log goes. `caching`: whether the prefix cache is on.

    `on_process` wants to know a process as soon as there is one, so that Ctrl-C ends it.
    """

    model: str
    adapters: tuple[Path, ...]
    cell: Cell
    caching: bool
    arguments: tuple[str, ...]
    log: Path
    on_process: Callable[[EngineProcess], None]


def no_variants(_cell: Cell, _arguments: tuple[str, ...]) -> Iterator[Variant]:
    """For an engine that has nothing to change beside its cache."""
    return iter(())


AdapterFor = Callable[[str | None], str | None]  # the model's folder, if it is told -> an adapter's that fits it


class Attach(Protocol):
    """Attaches to a server. Raises EngineStartError with the reason."""

    def __call__(self, url: str, *, adapter_for: AdapterFor) -> Engine:
        """The engine at `url`, tried with an adapter that fits the model whose folder it names."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. `package`: what to install, where it is a Python package.

    `start` raises EngineStartError with the reason and the log's end; None: Coldproof does not start it.
    `attach` takes one that its owner started, by its URL.
    `quick`: it starts in a second or two.
    """

    name: str
    about: str
    cells: tuple[Cell, ...]
    start: Callable[[Setting], Engine] | None = None
    attach: Attach | None = None
    package: str | None = None
    quick: bool = True
    variants: Callable[[Cell, tuple[str, ...]], Iterator[Variant]] = no_variants

    @property
    def installed(self) -> bool:
        """Whether its package is there; one that its owner starts needs none."""
        try:
            return self.package is None or bool(importlib.metadata.version(self.package))
        except importlib.metadata.PackageNotFoundError:
            return False
