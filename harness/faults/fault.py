"""A fault: one engine bug that is injected on purpose, to measure whether the suites notice it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import msgspec

from harness.faults.patching import Patch

Plant = Callable[[Patch], None]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One bug, as a patch of the engine's own code.

    `about`: the requirements that speak of it. `cells`: where its code is reached; none: in the cells of those
    requirements. `rare`: when it acts, where that is not always. `equivalent`: why nobody could tell the engine from a
    correct one; such a fault is not counted.
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
    """A mechanism's faults and the decorator that adds one: its name is the function's, its summary the docstring."""
    found: dict[str, Fault] = {}

    def fault(
        *about: str,
        stands_for: str,
        cells: tuple[str, ...] = (),
        workers: tuple[str, ...] = ("model", "fingerprint"),
        rare: str = "",
        equivalent: str = "",
    ) -> Callable[[Plant], Plant]:
        def add(plant: Plant) -> Plant:
            name = plant.__name__.replace("_", "-")
            found[name] = Fault(
                name=name,
                mechanism=mechanism,
                about=about,
                stands_for=stands_for,
                summary=" ".join(inspect.cleandoc(plant.__doc__ or "").split()),
                plant=plant,
                cells=cells,
                workers=workers,
                rare=rare,
                equivalent=equivalent,
            )
            return plant

        return add

    return found, fault
