"""Loads and unloads adapters."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.adapters.protocol.engine import Engine
from coldproof.harness.execution.runner.perform import perform, perform_apart
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.workload.kinds.adapters import SetAdapter, Unload


@perform.register(SetAdapter)
def set_adapter(step: SetAdapter, run: WorkloadRun) -> None:
    """Load an adapter."""
    run.adapters.set_adapter(step)


@perform_apart.register(SetAdapter)
def set_adapter_apart(step: SetAdapter, run: WorkloadRun, sides: Iterable[Engine]) -> None:
    """Load an adapter on one side after the other."""
    run.adapters.set_adapter(step, sides)


@perform.register(Unload)
def unload(step: Unload, run: WorkloadRun) -> None:
    """Unload an adapter."""
    run.adapters.unload(step.name)
