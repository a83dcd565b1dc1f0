"""Which abstract states of the engine the examples of a run reached, as tables of cells. See docs/reach.md."""

from __future__ import annotations

import msgspec


class Heading(msgspec.Struct, frozen=True):
    """A row or a column: its key in the identifiers of cells, and its title."""

    key: str
    title: str


class StateTable(msgspec.Struct, frozen=True, kw_only=True):
    """One family of states. A cell's identifier is `id/row/column`.

    `examples`: by row and column, how many examples reached the cell; None: it cannot exist, see `absent`.
    `observable`: whether any example could show these states; they need what `needs` says.
    """

    id: str
    title: str
    row_is: str
    column_is: str
    rows: list[Heading]
    columns: list[Heading]
    examples: list[list[int | None]]
    absent: dict[str, str] = {}
    needs: str = ""
    observable: bool = True
