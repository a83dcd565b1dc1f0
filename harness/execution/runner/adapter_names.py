"""Tracks the adapter names of one run: the content that is loaded under each, and the number of loads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from coldproof.adapters.protocol.engine import Engine, RequestRefused
from coldproof.harness.execution.models.lora import AdapterFiles, place
from coldproof.harness.workload.steps import Route, SetAdapter
from coldproof.harness.workload.tokens import wire_name


class Slot(msgspec.Struct, frozen=True):
    """The content that is loaded under an adapter name, and the number of this load within the run."""

    content: str
    load: int


class AdapterNames:
    """Loads and unloads adapters under names that belong to one run. Raises what the engine raises."""

    def __init__(self, engine: Engine, nonce: str, contents: dict[str, AdapterFiles], folder: Path) -> None:
        self.engine, self.nonce, self.contents, self.folder = engine, nonce, contents, folder
        self.slots: dict[str, Slot] = {}
        self.loads = 0

    def actual(self, symbol: str) -> str:
        """Return the name that the engine gets for a symbolic name."""
        return wire_name(symbol, self.nonce)

    def model(self, symbol: str | None) -> str:
        """Return the served name that a request names as its model."""
        return self.engine.base_model if symbol is None else self.actual(symbol)

    def load(self, symbol: str | None) -> int | None:
        """Return the number of the load under a name; None for a name without an adapter."""
        slot = self.slots.get(symbol) if symbol else None
        return slot.load if slot else None

    def digest(self, symbol: str | None) -> str | None:
        """Return the digest of the files loaded under a name; None for a name without an adapter."""
        slot = self.slots.get(symbol) if symbol else None
        return self.contents[slot.content].digest if slot else None

    def set_adapter(self, step: SetAdapter, sides: Iterable[Engine] = ()) -> None:
        """Write the files to the step's path and load them by the step's route: on each of `sides`, or on the engine.

        Without an unload that succeeded, the name keeps what it had if the engine refuses.
        """
        path = str(place(self.contents[step.content], self.folder / self.actual(step.path)))
        name, known = self.actual(step.name), step.name in self.slots
        for engine in sides or (self.engine,):
            if step.route is Route.UNLOAD_LOAD and known:
                engine.unload_adapter(name)
                self.slots.pop(step.name, None)
            if step.route is Route.SWITCH:
                engine.switch_adapter(name, path)
            else:
                engine.load_adapter(name, path, in_place=step.route is Route.IN_PLACE and known)
        self.loads += 1
        self.slots[step.name] = Slot(step.content, self.loads)

    def unload(self, symbol: str) -> None:
        """Unload a symbolic name."""
        self.engine.unload_adapter(self.actual(symbol))
        self.slots.pop(symbol, None)

    def clean_up(self) -> None:
        """Unload the remaining names, so that a long run does not fill the engine with names."""
        for symbol in list(self.slots):
            with contextlib.suppress(RequestRefused):
                self.unload(symbol)
        self.slots.clear()
