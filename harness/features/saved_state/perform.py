"""Saves and restores the cached state."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, RequestRefused, SavesState
from coldproof.harness.execution.runner.perform import perform
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.workload.kinds.saved_state import RestoreState, SaveState
from coldproof.harness.workload.steps import restored_after_change


@perform.register(SaveState)
def save(step: SaveState, run: WorkloadRun) -> int:
    """Save the state; return the number of tokens."""
    return with_saved_state(run.engine).save_state(run.adapters.actual(step.name))


@perform.register(RestoreState)
def restore(step: RestoreState, run: WorkloadRun) -> int:
    """Restore the state; return the number of tokens.

    An engine may refuse what another one saved about which something was different: that restores nothing.
    """
    engine = with_saved_state(run.engine)
    try:
        return engine.restore_state(run.adapters.actual(step.name))
    except RequestRefused:
        if restored_after_change(run.workload, run.current):
            return 0
        raise


def with_saved_state(engine: Engine) -> SavesState:
    """Return the engine as one that saves its state. Raises RequestRefused for any other."""
    if not isinstance(engine, SavesState):
        raise RequestRefused(501, engine.capabilities[Capability.SAVED_STATE].evidence)
    return engine
