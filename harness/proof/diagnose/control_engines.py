"""Starts the engines for controls: fresh ones with the configuration of the case, and ones with another."""

from __future__ import annotations

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, EngineStartError
from coldproof.adapters.spec.cell import Cell, EngineVariant
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.engines.standby import Standby


class ControlEngines:
    """Holds one engine at a time. If starting is quick, each control gets its own engine. Servers are shared by
    controls as long as they live; nonces keep their prompts apart. An attached server runs all controls.
    """

    def __init__(self, session: EnginePool, cell: Cell, tested: CheckedEngine, standby: Standby) -> None:
        self.session, self.cell, self.tested, self.standby = session, cell, tested, standby
        self.current: CheckedEngine | None = None
        self.own = False  # whether the current engine has the cell's own configuration

    def next(self) -> CheckedEngine:
        """Return an engine with the configuration of the case. Raises EngineError if there is none."""
        if self.session.options.attached:
            if not self.tested.alive():
                raise EngineDied("the attached server has terminated")
            return self.tested
        if self.current is None or self.session.options.quick or not self.own or not self.current.alive():
            self.drop()
            self.current, problem = self.standby.take(caching=True)
            self.own = True
            if self.current is None:
                raise EngineStartError(problem)
        return self.current_engine()

    def variant(self, variant: EngineVariant) -> CheckedEngine:
        """Return an engine with another configuration. Raises EngineStartError with the reason if it does not start."""
        self.drop()
        self.current = self.session.open_engine(variant.cell, purpose="control")
        self.own = False
        return self.current_engine()

    def current_engine(self) -> CheckedEngine:
        """Return the current engine. Raises EngineDied if there is none."""
        if self.current is None:
            raise EngineDied("no engine was started")
        return self.current

    def drop(self) -> None:
        """Stop the current engine."""
        if self.current is not None:
            self.session.close_engine(self.current)
            self.current = None

    def __enter__(self) -> ControlEngines:
        return self

    def __exit__(self, *raised: object) -> None:
        self.drop()
