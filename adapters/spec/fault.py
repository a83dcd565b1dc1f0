"""A fault: one engine bug that Coldproof injects to measure whether the suites detect it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
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

    Raises ValueError for a fault that does not say what it is.
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

    def __post_init__(self) -> None:
        """Check the texts that every list of faults shows."""
        if not self.summary.endswith((".", ").")):
            raise ValueError(f"fault {self.name}: the docstring must be a sentence")
        if not self.about or not self.stands_for:
            raise ValueError(f"fault {self.name}: name the requirements that cover it and the bugs that it stands for")


def listed(heading: str, faults: Mapping[str, Fault]) -> str:
    """Return a text with a heading and a line for each fault."""
    width = max(map(len, faults))
    return "\n".join([heading, *(f"  {name:<{width}}  {one.summary}" for name, one in faults.items())])


def collector(mechanism: str) -> tuple[dict[str, Fault], Callable[..., Callable[[Plant], Plant]]]:
    """Return an empty dictionary for a mechanism's faults, and a decorator that adds a fault to it.

    The fault's name is the name of the decorated function, its summary the function's docstring. Other options are
    fields of `Fault`. The decorator raises ValueError for a name that it has seen.
    """
    found: dict[str, Fault] = {}

    def fault(*about: str, stands_for: str, **options: Any) -> Callable[[Plant], Plant]:
        def add(plant: Plant) -> Plant:
            name = plant.__name__.replace("_", "-")
            if name in found:
                raise ValueError(f"two faults are called {name}")
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
