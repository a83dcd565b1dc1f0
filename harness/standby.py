"""Fresh engines, ordered before they are needed: starting one is slow, and mostly waiting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from adapters.base import EngineStartError
from adapters.checked import CheckedEngine
from harness.cell import Cell
from harness.session import Session


class Standby:
    """At most one engine of each kind (caching or not) that has answered nothing yet, for one cell."""

    def __init__(self, session: Session, cell: Cell) -> None:
        self.session, self.cell = session, cell
        self.ordered: dict[bool, Future[CheckedEngine]] = {}

    def order(self, *, caching: bool) -> None:
        """Have one started in the background, unless it is on its way, memory is short, or it is not ours to start."""
        if not self.session.options.attached and caching not in self.ordered and self.session.has_room():
            self.ordered[caching] = self.session.open_in_background(self.cell, caching=caching, purpose="fresh")

    def take(self, *, caching: bool) -> tuple[CheckedEngine | None, str]:
        """The engine that was ordered, or one that is started now; None and why, if it did not come."""
        ordered = self.ordered.pop(caching, None)
        if self.session.options.attached:
            return None, ""
        if ordered is None:
            ordered = self.session.open_in_background(self.cell, caching=caching, purpose="fresh")
        try:
            return ordered.result(), ""
        except EngineStartError as failure:
            return None, str(failure)

    @contextlib.contextmanager
    def one_by_one(self, *, caching: bool) -> Iterator[Callable[[], tuple[CheckedEngine | None, str]]]:
        """Fresh engines as long as the block runs: each is stopped as soon as the next one is asked for."""
        with contextlib.ExitStack() as taken:

            def another() -> tuple[CheckedEngine | None, str]:
                taken.close()
                engine, problem = self.take(caching=caching)
                if engine is not None:
                    taken.callback(self.session.close_engine, engine)
                return engine, problem

            yield another

    def discard(self) -> None:
        """Stop what was ordered and nobody took."""
        for ordered in self.ordered.values():
            if not ordered.cancel():
                with contextlib.suppress(EngineStartError):
                    self.session.close_engine(ordered.result())
        self.ordered.clear()
