"""Copies between the pool and a second tier that are carried out as late as a device may carry them out.

A device may run a copy at any time between its submission and the report of its completion. In between, the engine must
not use the blocks. A copy that is carried out at once would hide an engine that does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec

Named = TypeVar("Named", bound=Hashable)


class PendingCopy(msgspec.Struct, Generic[Named]):
    """A submitted copy. `polls`: the number of polls before its completion is reported."""

    key: Named
    copy: Callable[[], None]
    polls: int


class DeferredCopies(Generic[Named]):
    """The copies of one direction. They complete in the order of submission, each after `polls` polls."""

    def __init__(self, polls: int = 1) -> None:
        self.polls = polls
        self.pending: deque[PendingCopy[Named]] = deque()

    def submit(self, key: Named, copy: Callable[[], None]) -> None:
        """Add a copy, to be carried out later."""
        self.pending.append(PendingCopy(key, copy, self.polls))

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
