"""Resets caches, and records what the engine reports of it."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.adapters.protocol.engine import Engine, RequestRefused
from coldproof.adapters.protocol.resets import ResetsBeside, ResetsMore
from coldproof.harness.execution.runner.perform import perform, perform_apart
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import ResetRecord
from coldproof.harness.workload.kinds.resets import Reset


@perform.register(Reset)
def reset(step: Reset, run: WorkloadRun) -> None:
    """Reset the cache of the engine."""
    reset_each(step, run, (run.engine,))


@perform_apart.register(Reset)
def reset_each(step: Reset, run: WorkloadRun, sides: Iterable[Engine]) -> None:
    """Reset the cache of each side. A refusal is recorded as an unsuccessful reset."""
    began = run.clock()
    try:
        success = all(reset_engine(engine, step) for engine in sides)
    except RequestRefused:
        success = False
    made = run.changes.resets if step.prefix else run.changes.side_resets
    made.append(ResetRecord(began=began, ended=run.clock(), success=success, scope=step.scope))


def reset_engine(engine: Engine, step: Reset) -> bool:
    """Reset the prefix cache and the scope of a step, or only the scope. Return whether the engine confirms it."""
    if not step.prefix:
        return engine.reset_beside(step.scope) if isinstance(engine, ResetsBeside) else False
    if not step.scope:
        return engine.reset_cache()
    return engine.reset_more(step.scope) if isinstance(engine, ResetsMore) else False
