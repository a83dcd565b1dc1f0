"""Restarts an engine, or a part of several that answer together."""

from __future__ import annotations

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.sides import ENGINES, RestartsSides, Side
from coldproof.harness.execution.runner.perform import perform
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import ResetRecord, SideRestart
from coldproof.harness.workload.kinds.restarts import Restart, RestartSide


@perform.register(Restart)
def restart(_: Restart, run: WorkloadRun) -> None:
    """Replace the engine by the next one."""
    run.restart()


@perform.register(RestartSide)
def restart_side(step: RestartSide, run: WorkloadRun) -> None:
    """Kill a side and start it again. What the prefiller had is lost, as after a reset. Counters continue.

    Those of an engine begin anew, and those of its tier are the engine's.
    """
    engine, side = run.engine, step.side
    if not isinstance(engine, RestartsSides):
        raise RequestRefused(501, engine.capabilities[side.failures].evidence)
    began = run.clock()
    engine.restart_side(side)
    run.changes.side_restarts.append(SideRestart(began, run.clock(), side))
    if side is Side.PREFILL:
        run.changes.resets.append(ResetRecord(began=began, ended=run.clock(), success=True))
    if side in ENGINES:
        run.continue_counters()
