"""Named engine configurations. A cell adds flags to the adapter's own; the report has a column for each."""

from __future__ import annotations

import msgspec

from harness.options import UsageError


class Cell(msgspec.Struct, frozen=True):
    """One configuration: its flags and, in a line, what it is for."""

    name: str
    arguments: tuple[str, ...]
    about: str


CELLS = {
    cell.name: cell
    for cell in (
        Cell("default", (), "blocks of 32, a pool that never evicts, default scheduler"),
        Cell("blocks-64", ("--block-size", "64"), "blocks of 64: other boundaries for the same workloads"),
        Cell("small-chunks", ("--max-num-batched-tokens", "128"), "prefill in chunks of at most 128 tokens"),
        Cell("sync", ("--no-async-scheduling",), "the scheduler waits for each step's tokens"),
    )
}
ATTACHED = Cell("attached", (), "the server as its owner configured it")


def chosen(names: tuple[str, ...]) -> list[Cell]:
    """The cells of those names. Raises UsageError for one that does not exist."""
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        raise UsageError(f"unknown cell {unknown[0]!r}: --cells list prints them")
    return [CELLS[name] for name in names]


def listing() -> str:
    """All cells, a line each."""
    width = max(len(name) for name in CELLS)
    return "\n".join(f"{name:<{width}}  {cell.about}" for name, cell in CELLS.items())
