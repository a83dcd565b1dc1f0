"""Starts fresh engines in the background before they are needed, because starting one is slow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.engines.pool import EnginePool


class Standby:
    """Holds at most one unused engine of each kind (caching on or off) for one cell."""

    def __init__(self, session: EnginePool, cell: Cell) -> None:
        self.session, self.cell = session, cell
        self.ordered: dict[bool, Future[CheckedEngine]] = {}

    def order(self, *, caching: bool) -> None:
        """Start an engine in the background, unless one is starting, memory is short, or a server is attached."""
        if not self.session.options.attached and caching not in self.ordered and self.session.has_room():
            self.ordered[caching] = self.session.open_in_background(self.cell, caching=caching, purpose="fresh")

    def take(self, *, caching: bool) -> tuple[CheckedEngine | None, str]:
        """Return (engine, ""): the one started in the background, or a new one. Return (None, why) on failure."""
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
        """Yield a function that returns a fresh engine. Each call, and the end of the block, stops the previous one."""
        with contextlib.ExitStack() as taken:

            def another() -> tuple[CheckedEngine | None, str]:
                taken.close()
                engine, problem = self.take(caching=caching)
                if engine is not None:
                    taken.callback(self.session.close_engine, engine)
                return engine, problem

            yield another

    def discard(self) -> None:
        """Stop the engines that were not used."""
        for ordered in self.ordered.values():
            if not ordered.cancel():
                with contextlib.suppress(EngineStartError):
                    self.session.close_engine(ordered.result())
        self.ordered.clear()
