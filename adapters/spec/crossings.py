"""Crossed cells: configurations in which several features of an engine are on at once.

A configuration is a point: one value of each dimension. Nobody can list all points, and nobody thinks of the pair that
breaks. A covering array of strength 2 has each pair of values in at least one point, one of strength 3 each triple.
See D. R. Kuhn and others, "Practical Combinatorial Testing", NIST SP 800-142.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.spec.cell import Cell

JOINT = "+"  # between the values in the name of a crossed cell
PAIRS, TRIPLES = 2, 3  # strengths

Point = Mapping[str, str]  # the name of a dimension -> the name of one of its values


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a dimension. `arguments`: its flags. `fields`: what else it changes in a cell. `feature`: what it
    switches on; None if it acts in each request, as a size of blocks does.
    """

    name: str
    arguments: tuple[str, ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()
    feature: Capability | None = None


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """One feature and its values. The first one is the default, and is not in the name of a cell."""

    name: str
    values: tuple[Value, ...]

    @property
    def default(self) -> str:
        """Return the name of the value that a cell has unless its name says otherwise."""
        return self.values[0].name


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Values of two dimensions that cannot be together. `because`: the message with which the engine ends, or why
    Coldproof cannot test them.
    """

    one: tuple[str, ...]
    other: tuple[str, ...]
    because: str

    def applies(self, values: Collection[str]) -> bool:
        """Return whether these values include one of each side."""
        return not (set(self.one).isdisjoint(values) or set(self.other).isdisjoint(values))


class Crossings(msgspec.Struct, frozen=True, kw_only=True):
    """The crossed cells of an engine. By profile, `chosen` has names, and `strengths` the strength of a covering array.

    `cell`: makes the cell of a point, with this name. `point`: the point of a cell; None for one that has a place in no
    dimension, such as two servers.
    """

    dimensions: tuple[Dimension, ...]
    refusals: tuple[Refusal, ...]
    cell: Callable[[str, Sequence[Value]], Cell]
    point: Callable[[Cell], Point | None]
    chosen: Mapping[str, tuple[str, ...]] = {}
    strengths: Mapping[str, int] = {}

    def named(self, name: str) -> Cell | None:
        """Return the crossed cell with this name; None if it is no name of one.

        A name has at least two values, in the order of their dimensions, so that a cell has one name. Values that the
        engine refuses together make a cell, too: the engine's message then says why there is no verdict.
        """
        values = self.values(name)
        return self.cell(name, values) if values else None

    def values(self, name: str) -> list[Value]:
        """Return the values in the name of a crossed cell; none for any other name."""
        chosen = name.split(JOINT)
        values = [value for one in self.dimensions for value in one.values[1:] if value.name in chosen]
        return values if len(values) >= PAIRS and [value.name for value in values] == chosen else []

    def without_each(self, name: str) -> Iterator[tuple[str, Cell]]:
        """Yield each value of a crossed cell, with the cell that has its default instead."""
        values = self.values(name)
        for left_out in values:
            yield left_out.name, self.cell(name, [value for value in values if value is not left_out])

    def cells(self, profile: str) -> tuple[Cell, ...]:
        """Return the crossed cells of a profile."""
        strength = self.strengths.get(profile)
        names = (*(self.names(strength) if strength is not None else ()), *self.chosen.get(profile, ()))
        return tuple(filter(None, map(self.named, dict.fromkeys(names))))

    def names(self, strength: int) -> tuple[str, ...]:
        """Return the names of an array's cells. A point with at most one value that is no default is a cell already."""
        names = []
        for row in covering_rows(self.dimensions, self.refusals, strength):
            chosen = [row[one.name] for one in self.dimensions if row[one.name] != one.default]
            if len(chosen) >= PAIRS:
                names.append(JOINT.join(chosen))
        return tuple(dict.fromkeys(names))

    def refused(self, values: Collection[str]) -> str:
        """Return why these values cannot be together; "" if they can."""
        return next((one.because for one in self.refusals if one.applies(values)), "")

    def possible_pairs(self) -> dict[str, list[str]]:
        """Return the pairs of values that are not refused, by their dimensions, as texts."""
        return {
            f"{one.name}, {other.name}": [
                f"{a.name}{JOINT}{b.name}"
                for a, b in itertools.product(one.values, other.values)
                if not self.refused((a.name, b.name))
            ]
            for one, other in itertools.combinations(self.dimensions, 2)
        }

    def features(self) -> dict[str, Capability]:
        """Return the values that switch a feature on, with that feature."""
        return {value.name: value.feature for one in self.dimensions for value in one.values if value.feature}

    def values_of(self, cell: Cell) -> list[str]:
        """Return the value of each dimension that a cell has; empty for a cell that has a place in none."""
        return list((self.point(cell) or {}).values())


@cache
def covering_rows(
    dimensions: tuple[Dimension, ...], refusals: tuple[Refusal, ...], strength: int
) -> tuple[dict[str, str], ...]:
    """Return the points of a covering array, which are the same in each run."""
    from covertable import make  # here, because most commands need no array

    names = {one.name: [value.name for value in one.values] for one in dimensions}
    place = {value: name for name, values in names.items() for value in values}

    def none_of(side: tuple[str, ...]) -> dict[str, Any]:
        return {"operator": "not", "condition": {"operator": "in", "left": place[side[0]], "values": list(side)}}

    constraints = [{"operator": "or", "conditions": [none_of(one.one), none_of(one.other)]} for one in refusals]
    return tuple(make(names, strength=strength, constraints=constraints))
