"""Ends sessions."""

from __future__ import annotations

from coldproof.harness.execution.runner.perform import perform
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.sessions.steps import CloseSession


@perform.register(CloseSession)
def close(step: CloseSession, run: WorkloadRun) -> None:
    """End a session."""
    run.requests.close_session(run.adapters.actual(step.name), aborted=step.aborted)
