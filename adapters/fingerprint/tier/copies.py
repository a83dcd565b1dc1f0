"""Copies between the pool and a second tier that are carried out as late as a device may carry them out.

A device runs a copy at any moment between its submission and the moment at which its end is reported; the engine must
not touch the blocks in between. Host memory copied at once would hide an engine that does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)


class Pending(msgspec.Struct, Generic[Key]):
    """A copy that was submitted, and how many looks pass before its end is reported."""

    key: Key
    copy: Callable[[], None]
    looks: int


class LateCopies(Generic[Key]):
    """Copies of one direction: they end in the order of their submission, each after `looks` looks at the queue."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.pending: deque[Pending[Key]] = deque()

    def submit(self, key: Key, copy: Callable[[], None]) -> None:
        """Have a copy carried out later."""
        self.pending.append(Pending(key, copy, self.looks))

    def finished(self) -> list[Key]:
        """One look: the copies that have ended by now, carried out just before that is told."""
        ended = []
        for one in self.pending:
            one.looks -= 1
        while self.pending and self.pending[0].looks < 0:
            one = self.pending.popleft()
            one.copy()
            ended.append(one.key)
        return ended

    def wait(self, keys: set[Key]) -> None:
        """Carry out everything up to the last of these now; that they have ended is told at the next look."""
        last = max((i for i, one in enumerate(self.pending) if one.key in keys), default=-1)
        for i, one in enumerate(self.pending):
            if i > last:
                return
            one.copy()
            one.copy, one.looks = nothing, min(one.looks, 0)

    def clear(self) -> None:
        """Carry out what is left: a device is drained before its memory goes."""
        for one in self.pending:
            one.copy()
        self.pending.clear()


def nothing() -> None:
    """The copy of what was copied already."""
