"""Copies between the pool and a second tier that are carried out as late as a device may carry them out.

A device may run a copy at any time between its submission and the report of its completion. In between, the engine must
not use the blocks. A copy that is carried out at once would hide an engine that does.

Copies take a step or several, as their blocks decide: the parts of a tier of several, the two directions and two
requests end at different times, and a replay on the same blocks repeats it.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

Named = TypeVar("Named", bound=Hashable)
SPEEDS = (1, 1, 0, 1, 2, 5)  # polls until a copy's completion is reported; most take a step


def polls_of(blocks: Iterable[int]) -> int:
    """Return the polls that a copy of these blocks takes."""
    return SPEEDS[zlib.crc32(repr([int(block) for block in blocks]).encode()) % len(SPEEDS)]


class PendingCopy(msgspec.Struct, Generic[Named]):
    """A submitted copy. `polls`: the number of polls before its completion is reported."""

    key: Named
    copy: Callable[[], None]
    polls: int


class DeferredCopies(Generic[Named]):
    """The copies of one direction. They complete in the order of submission, none before its own polls are over."""

    def __init__(self) -> None:
        self.pending: deque[PendingCopy[Named]] = deque()

    def submit(self, key: Named, copy: Callable[[], None], polls: int) -> None:
        """Add a copy, to be carried out later. `polls`: see `polls_of`."""
        self.pending.append(PendingCopy(key, copy, polls))

    def poll(self) -> list[Named]:
        """Carry out the copies that are due and return their keys."""
        completed = []
        for one in self.pending:
            one.polls -= 1
        while self.pending and self.pending[0].polls < 0:
            one = self.pending.popleft()
            one.copy()
            completed.append(one.key)
        return completed

    def wait(self, keys: set[Named]) -> None:
        """Carry out all copies up to the last of these now. The next poll reports them."""
        last = max((i for i, one in enumerate(self.pending) if one.key in keys), default=-1)
        for i, one in enumerate(self.pending):
            if i > last:
                return
            one.copy()
            one.copy, one.polls = lambda: None, min(one.polls, 0)  # it must not be carried out again

    def drain(self) -> None:
        """Carry out and remove all copies, as a device does before its memory is freed."""
        for one in self.pending:
            one.copy()
        self.pending.clear()
