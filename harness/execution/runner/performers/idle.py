"""Waits until an engine is idle."""

from __future__ import annotations

from coldproof.harness.execution.runner.perform import perform
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.workload.kinds.idle import Idle


@perform.register(Idle)
def idle(step: Idle, run: WorkloadRun) -> None:
    """Send nothing for a time, and wait until the engine is empty."""
    run.idle(step.ms)
