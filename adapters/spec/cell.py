"""A cell: one named engine configuration with its flags. A control variant: a changed cell, for the diagnosis."""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Collection

import msgspec

from coldproof.adapters.protocol.cell_traits import meet

# What control variants remove.
CACHING, POOL, CHUNKS, TIER = "prefix caching", "a pool this small", "prefill in chunks", "the second tier"


class ModelLayers(enum.StrEnum):
    """The layers of the generated model that a cell serves."""

    FULL = "full attention"
    WINDOW = "sliding window"  # in five of six layers
    STATE = "state"  # in every second layer: one state of the whole context
    IMAGES = "full attention, behind a vision tower"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration. `about`: its purpose. `arguments`: its flags.

    `traits`: what it is, in the words of requirements (`CellTrait`, or those of one suite); None: it suits all of them.
    `lossy`: what a lossy mode changes in answers by design, and why. Answers are then compared with what the mode
    promises (see harness/history/non_prefix_reuse.py).
    `alike`: cold answers are equal to those of the engine's first cell, so that both cells share one cold engine.
    An engine with flags of its own has a subclass.
    """

    name: str
    about: str
    arguments: tuple[str, ...] = ()
    traits: tuple[str, ...] | None = None
    alike: bool = True
    model: ModelLayers = ModelLayers.FULL
    package: str | None = None  # a Python package that this cell needs beside the engine's own
    on_request: bool = False  # run only if --cells names it
    own_answers: bool = False  # engines of other cells refuse its requests, whatever the worker
    lossy: str = ""  # a text that follows "lossy mode:"
    engine: str = ""  # the engine to which the flags belong
    # The cell that differs only by another implementation of one part of the engine, which has to hit and publish the
    # same. No cell is its own.
    twin: str = ""

    def suits(self, wanted: Collection[str]) -> bool:
        """Return whether a requirement can be exercised here. `wanted`: the traits of which it needs one."""
        return meet(self.traits, wanted)

    def obstacle(self, engine: str, _worker: str) -> str:
        """Return why an engine with this worker cannot be started in this cell; an empty text if it can."""
        if engine == self.engine:
            return ""
        return f"cell {self.name!r} belongs to engine {self.engine}, not to {engine}"

    def fits(self, engine: str, worker: str) -> bool:
        """Return whether an engine with this worker can be started in this cell."""
        return not self.obstacle(engine, worker)

    @property
    def installed(self) -> bool:
        """Return whether the package that this cell needs is installed."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    @property
    def chunked(self) -> bool:
        """Return whether even a short prompt is computed in several steps."""
        return False


class EngineVariant(msgspec.Struct, frozen=True, kw_only=True):
    """One engine configuration. `removes`: the feature of the case's configuration that this one does not have."""

    name: str
    removes: str
    cell: Cell
