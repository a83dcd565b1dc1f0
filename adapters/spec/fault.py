"""A fault: one engine bug that Coldproof injects to measure whether the suites detect it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import msgspec


class Patch(Protocol):
    """An object that sets attributes. pytest's MonkeyPatch also restores them; an engine's process keeps them."""

    def setattr(self, target: Any, name: str, value: Any, /) -> None:
        """Set `target.name` to `value`."""


Plant = Callable[[Patch], None]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One engine bug, as a patch of the engine's own code.

    `about`: the requirements that cover it. `stands_for`: the real bugs that it represents. `plant`: applies the patch.
    `cells`: the cells that run the patched code; empty: the cells of these requirements. `rare`: when the fault acts,
    if it does not always act. `equivalent`: why the behaviour is still correct; such a fault is not counted.
    """

    name: str
    mechanism: str
    about: tuple[str, ...]
    stands_for: str
    summary: str
    plant: Plant
    cells: tuple[str, ...] = ()
    workers: tuple[str, ...] = ("model", "fingerprint")
    rare: str = ""
    equivalent: str = ""


def collector(mechanism: str) -> tuple[dict[str, Fault], Callable[..., Callable[[Plant], Plant]]]:
    """Return an empty dictionary for a mechanism's faults, and a decorator that adds a fault to it.

    The fault's name is the name of the decorated function, its summary the function's docstring. Other options are
    fields of `Fault`.
    """
    found: dict[str, Fault] = {}

    def fault(*about: str, stands_for: str, **options: Any) -> Callable[[Plant], Plant]:
        def add(plant: Plant) -> Plant:
            name = plant.__name__.replace("_", "-")
            found[name] = Fault(
                name=name,
                mechanism=mechanism,
                about=about,
                stands_for=stands_for,
                summary=" ".join(inspect.cleandoc(plant.__doc__ or "").split()),
                plant=plant,
                **options,
            )
            return plant

        return add

    return found, fault
