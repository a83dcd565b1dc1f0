"""Counts over the examples of a run which states of the engine were reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from coldproof.harness.schema.reach import Heading, StateTable
from coldproof.reports.format.text import many, number

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReachTotals:
    """Numbers of cells: that can exist and be seen, of these reached and reached by one example only; and not seen."""

    cells: int
    reached: int
    once: int
    unseen: int

    @property
    def never(self) -> int:
        """Return how many cells were never reached."""
        return self.cells - self.reached


def state_tables(events: list[Event]) -> list[StateTable]:
    """Return the tables of the model that the run announced, with the number of examples that reached each cell."""
    announced: list[dict[str, Any]] = next(
        (event["families"] for event in reversed(events) if event["event"] == "states"), []
    )
    examples = [event for event in events if event["event"] == "example"]
    counts = reached_cells(examples)
    seen = {need for event in examples for need in event["seen"]}
    return [table(family, counts, seen) for family in announced]


def reached_cells(examples: Iterable[Event]) -> dict[str, int]:
    """Return how many of these examples reached each cell, by its identifier."""
    counts = Counter(cell for event in examples for cell in event["reach"])
    return dict(sorted(counts.items()))


def table(family: dict[str, Any], counts: dict[str, int], seen: set[str]) -> StateTable:
    """Return one family with its counts."""
    absent = family["absent"]
    return StateTable(
        id=family["id"],
        title=family["title"],
        row_is=family["row_is"],
        column_is=family["column_is"],
        rows=[Heading(key, title) for key, title in family["rows"].items()],
        columns=[Heading(key, title) for key, title in family["columns"].items()],
        examples=[
            [
                None if f"{row}/{column}" in absent else counts.get(f"{family['id']}/{row}/{column}", 0)
                for column in family["columns"]
            ]
            for row in family["rows"]
        ],
        absent=absent,
        needs=family["needs"],
        observable=not family["needs"] or family["needs"] in seen,
    )


def totals(tables: Sequence[StateTable]) -> ReachTotals:
    """Return the figures of these tables."""
    counts = [count for one in tables if one.observable for row in one.examples for count in row if count is not None]
    hidden = [count for one in tables if not one.observable for row in one.examples for count in row]
    return ReachTotals(
        cells=len(counts),
        reached=sum(count > 0 for count in counts),
        once=counts.count(1),
        unseen=sum(count is not None for count in hidden),
    )


def reach_summary(tables: Sequence[StateTable]) -> str:
    """Return the figures of a run in one line; "" for a run without tables."""
    if not tables:
        return ""
    of = totals(tables)
    hidden = f"; {many(of.unseen, 'state')} cannot be seen on this engine" if of.unseen else ""
    return (
        f"engine states reached: {number(of.reached)} of {number(of.cells)}, "
        f"{number(of.once)} by one example only, {number(of.never)} never{hidden}"
    )
