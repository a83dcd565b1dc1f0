"""Assigns the tests of a run to shards: `--shard 2/3`.

The assignment depends only on the tests, their weights and the number of shards. Machines that do not communicate
therefore run each test exactly once. Tests stay in the order of their cells, so that few machines
start the same engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from coldproof.harness.options import UsageError


class Shard(msgspec.Struct, frozen=True):
    """One shard: `number` (from 1) of `of` shards."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def read_shard(text: str) -> Shard:
    """Parse text such as `2/3`. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    shard = Shard(int(match[1]), int(match[2])) if match else None
    if shard is None or not 1 <= shard.number <= shard.of:
        raise UsageError(f"--shard {text!r}: invalid shard; use for example 2/3 for the second of three")
    return shard


def assign_shards(weights: Sequence[float], of: int) -> list[int]:
    """Return for each test the number of its shard. The shards have nearly equal weights, and none is empty.

    Raises UsageError if there are fewer tests than shards.
    """
    if len(weights) < of:
        raise UsageError(f"--shard: {len(weights)} tests cannot be divided into {of} shards")
    total, before, last = sum(weights), 0.0, 0
    numbers = []
    for i, weight in enumerate(weights):
        fair = int((before + weight / 2) * of / total) + 1
        needed = of - (len(weights) - 1 - i)  # otherwise later shards would be empty
        last = min(max(fair, needed), last + 1) if fair > last or needed > last else last
        numbers.append(last)
        before += weight
    return numbers
