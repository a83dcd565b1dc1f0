"""Which part of a run is one machine's: `--shard 2/3`.

The cut follows from the tests, their weights and the number of shards alone, so that machines that know nothing of each
other run each test once. Tests stay in the order of their cells: a cell's engine starts on as few machines as can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from harness.options import UsageError


class Shard(msgspec.Struct, frozen=True):
    """The `number`th (from 1) of so many shards."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def read_shard(text: str) -> Shard:
    """`2/3`. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    shard = Shard(int(found[1]), int(found[2])) if found else None
    if shard is None or not 1 <= shard.number <= shard.of:
        raise UsageError(f"--shard {text!r} is no shard: write 2/3 for the second of three")
    return shard


def cut(weights: Sequence[float], of: int) -> list[int]:
    """The number of the shard that each test belongs to: weights nearly equal, no shard empty.

    Raises UsageError where there are fewer tests than shards.
    """
    if len(weights) < of:
        raise UsageError(f"--shard: {len(weights)} tests cannot be cut into {of} shards")
    total, before, last = sum(weights), 0.0, 0
    numbers = []
    for i, weight in enumerate(weights):
        fair = int((before + weight / 2) * of / total) + 1
        needed = of - (len(weights) - 1 - i)  # or too few tests would be left for the shards behind
        last = min(max(fair, needed), last + 1) if fair > last or needed > last else last
        numbers.append(last)
        before += weight
    return numbers
