"""How states are declared: their tables beside the one function that yields the cells that were reached."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import msgspec

from coldproof.harness.feature_files import Ordered
from coldproof.harness.judgement.reach.model import Family
from coldproof.harness.judgement.reach.timeline import Timeline

Cell = tuple[str, str, str]
Yields = Callable[[Timeline], Iterator[Cell]]


class States(msgspec.Struct, frozen=True):
    """Tables, and the function that yields the cells of them that a history has reached."""

    families: tuple[Family, ...]
    function: Yields


REGISTERED: Ordered[States] = Ordered("states", package=__name__.rpartition(".")[0])


def states(*families: Family, order: int) -> Callable[[Yields], Yields]:
    """Register a function with its tables. `order`: their place in reports. Raises ValueError for a taken place."""

    def register(function: Yields) -> Yields:
        REGISTERED.put(order, States(families, function), function)
        return function

    return register


def families() -> tuple[Family, ...]:
    """Return all tables, in order."""
    return tuple(family for one in REGISTERED.load() for family in one.families)


@functools.cache
def absent() -> frozenset[str]:
    """Return the identifiers of the cells that cannot exist."""
    return frozenset(f"{family.id}/{cell}" for family in families() for cell in family.absent)
