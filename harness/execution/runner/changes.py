"""The changes that are made while the requests of a burst are in flight, and what all changes of a run left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, RequestRefused
from coldproof.adapters.protocol.sides import HasSides, Side
from coldproof.harness.execution.runner.burst import Change
from coldproof.harness.history.records import HalfChanged, ResetRecord, SideRestart
from coldproof.harness.workload.steps import Change as StepChange
from coldproof.harness.workload.steps import Meanwhile


class Changes:
    """The records of one run's changes. `resets`: those of the prefix cache; a pause that clears it is one.

    `make` makes a change, `make_apart` makes it on one side after the other. Both raise EngineError.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        make: Callable[[StepChange], object],
        make_apart: Callable[[StepChange, Iterable[Any]], None],
    ) -> None:
        self.engine, self.clock, self.make, self.make_apart = engine, clock, make, make_apart
        self.resets: list[ResetRecord] = []
        self.side_resets: list[ResetRecord] = []
        self.side_restarts: list[SideRestart] = []
        self.half_changed: list[HalfChanged] = []

    def during(self, meanwhile: Meanwhile) -> Change:
        """Return the changes that a burst makes while its requests are in flight."""
        if meanwhile.first is not None:
            first, gap_ms = meanwhile.first, meanwhile.gap_ms
            return Change(meanwhile, lambda change: self.make_apart(change, self.sides(first, gap_ms)), self.clock)
        return Change(meanwhile, self.make, self.clock)

    def sides(self, first: Side, gap_ms: int) -> Iterator[Any]:
        """Yield the sides one after the other, and record the time between both. Raises RequestRefused without any."""
        if not isinstance(self.engine, HasSides):
            raise RequestRefused(501, self.engine.capabilities[Capability.ONE_SIDE_FIRST].evidence)
        yield self.engine.side(first)
        changed = self.clock()
        time.sleep(gap_ms / 1000)
        self.half_changed.append(HalfChanged(changed, self.clock(), first))
        yield self.engine.side(first.other)
