"""The engines that controls run on: fresh ones of the case's own kind, and of other configurations."""

from __future__ import annotations

from types import TracebackType

from adapters.base import EngineDied, EngineStartError
from adapters.checked import CheckedEngine
from harness.cell import Cell
from harness.session import Session
from harness.standby import Standby
from harness.variant import Variant


class ControlEngines:
    """One engine at a time. Where a start takes seconds each control gets its own; over HTTP they share one as long as
    it lives, kept apart by their nonces. An attached engine serves them all.
    """

    def __init__(self, session: Session, cell: Cell, tested: CheckedEngine, standby: Standby) -> None:
        self.session, self.cell, self.tested, self.standby = session, cell, tested, standby
        self.current: CheckedEngine | None = None
        self.own = False  # whether the current one is of the cell's own kind

    def next(self) -> CheckedEngine:
        """An engine of the case's own kind. Raises EngineError when there is none."""
        if self.session.options.attached:
            if not self.tested.alive():
                raise EngineDied("the attached engine is gone")
            return self.tested
        if self.current is None or self.session.options.quick or not self.own or not self.current.alive():
            self.drop()
            self.current, problem = self.standby.take(caching=True)
            self.own = True
            if self.current is None:
                raise EngineStartError(problem)
        return self.living()

    def variant(self, variant: Variant) -> CheckedEngine:
        """An engine of another configuration. Raises EngineStartError with the reason where it does not start."""
        self.drop()
        self.current = self.session.open_engine(variant.cell, purpose="control")
        self.own = False
        return self.living()

    def living(self) -> CheckedEngine:
        """The current one."""
        if self.current is None:
            raise EngineDied("no engine was started")
        return self.current

    def drop(self) -> None:
        """Stop the current one."""
        if self.current is not None:
            self.session.close_engine(self.current)
            self.current = None

    def __enter__(self) -> ControlEngines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()
