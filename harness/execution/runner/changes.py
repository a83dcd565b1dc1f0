"""Makes the changes of a workload, between requests or during them, and records them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, RequestRefused
from coldproof.adapters.protocol.resets import ResetsBeside, ResetsMore
from coldproof.adapters.protocol.sides import ENGINES, HasSides, RestartsSides, Side
from coldproof.harness.execution.runner.adapter_names import AdapterNames
from coldproof.harness.execution.runner.burst import Change
from coldproof.harness.execution.runner.served_weights import ServedWeights
from coldproof.harness.history.records import HalfChanged, ResetRecord, SideRestart
from coldproof.harness.workload.steps import Change as StepChange
from coldproof.harness.workload.steps import (
    Meanwhile,
    Pause,
    Reset,
    RestartSide,
    Resume,
    SetAdapter,
    Sleep,
    UpdateWeights,
    Wake,
)


class Changes:
    """The changes of one run. `resets`: those of the prefix cache, to which `weights` adds what an update clears.

    `on_restart`: called when one engine of several was started again, whose counters begin anew.
    """

    def __init__(
        self,
        engine: Engine,
        adapters: AdapterNames,
        weights: ServedWeights,
        resets: list[ResetRecord],
        *,
        clock: Callable[[], float],
        on_restart: Callable[[], None],
    ) -> None:
        self.engine, self.adapters, self.weights, self.resets = engine, adapters, weights, resets
        self.clock, self.on_restart = clock, on_restart
        self.side_resets: list[ResetRecord] = []
        self.side_restarts: list[SideRestart] = []
        self.half_changed: list[HalfChanged] = []

    def make(self, change: StepChange) -> None:
        """Make a change, between requests or during them. Raises EngineError."""
        match change:
            case SetAdapter():
                self.adapters.set_adapter(change)
            case Reset():
                self.reset(change)
            case UpdateWeights():
                self.weights.update(change)
            case Pause():
                self.weights.pause(change)
            case Resume():
                self.weights.resume()
            case Sleep():
                self.weights.sleep(change)
            case Wake():
                self.weights.wake(change)
            case RestartSide():
                self.restart_side(change.side)

    def during(self, meanwhile: Meanwhile) -> Change:
        """Return the changes that a burst makes while its requests are in flight."""
        if isinstance(meanwhile.first, Side):
            first = meanwhile.first
            return Change(meanwhile, lambda change: self.make_apart(change, first, meanwhile.gap_ms), self.clock)
        return Change(meanwhile, self.make, self.clock)

    def make_apart(self, change: StepChange, first: Side, gap_ms: int) -> None:
        """Make a change on one side, and `gap_ms` milliseconds later on the other. Raises EngineError."""
        sides = self.sides(first, gap_ms)
        match change:
            case SetAdapter():
                self.adapters.set_adapter(change, sides)
            case UpdateWeights():
                self.weights.update(change, sides)
            case Reset():
                self.reset(change, sides)
            case _:
                raise RequestRefused(501, f"no {type(change).__name__} is made on one side before the other")

    def sides(self, first: Side, gap_ms: int) -> Iterator[Any]:
        """Yield the sides one after the other, and record the time between both. Raises RequestRefused without any."""
        if not isinstance(self.engine, HasSides):
            raise RequestRefused(501, self.engine.capabilities[Capability.ONE_SIDE_FIRST].evidence)
        yield self.engine.side(first)
        changed = self.clock()
        time.sleep(gap_ms / 1000)
        self.half_changed.append(HalfChanged(changed, self.clock(), first))
        yield self.engine.side(first.other)

    def reset(self, step: Reset, sides: Iterable[Engine] = ()) -> None:
        """Reset the cache, on each of `sides` or on the engine, and record what is reported. A refusal is recorded as
        an unsuccessful reset.
        """
        began = self.clock()
        try:
            success = all(reset_engine(engine, step) for engine in sides or (self.engine,))
        except RequestRefused:
            success = False
        made = self.resets if step.prefix else self.side_resets
        made.append(ResetRecord(began=began, ended=self.clock(), success=success, scope=step.scope))

    def restart_side(self, side: Side) -> None:
        """Kill a side and start it again. What the prefiller had is lost, as after a reset. Counters continue.

        Those of an engine begin anew, and those of its tier are the engine's.
        """
        if not isinstance(self.engine, RestartsSides):
            raise RequestRefused(501, self.engine.capabilities[side.failures].evidence)
        began = self.clock()
        self.engine.restart_side(side)
        self.side_restarts.append(SideRestart(began, self.clock(), side))
        if side is Side.PREFILL:
            self.resets.append(ResetRecord(began=began, ended=self.clock(), success=True))
        if side in ENGINES:
            self.on_restart()


def reset_engine(engine: Engine, step: Reset) -> bool:
    """Reset the prefix cache and the scope of a step, or only the scope. Return whether the engine confirms it."""
    if not step.prefix:
        return engine.reset_beside(step.scope) if isinstance(engine, ResetsBeside) else False
    if not step.scope:
        return engine.reset_cache()
    return engine.reset_more(step.scope) if isinstance(engine, ResetsMore) else False
