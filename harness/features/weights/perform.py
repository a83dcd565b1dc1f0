"""Updates the weights, pauses the engine and lets it sleep."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.adapters.protocol.weights import ChangesWeights
from coldproof.harness.execution.runner.perform import perform, perform_apart
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.workload.kinds.weights import Pause, Resume, Sleep, UpdateWeights, Wake


@perform.register(UpdateWeights)
def update(step: UpdateWeights, run: WorkloadRun) -> None:
    """Load other weights."""
    run.weights.update(step)


@perform_apart.register(UpdateWeights)
def update_apart(step: UpdateWeights, run: WorkloadRun, sides: Iterable[ChangesWeights]) -> None:
    """Load other weights on one side after the other."""
    run.weights.update(step, sides)


@perform.register(Pause)
def pause(step: Pause, run: WorkloadRun) -> None:
    """Pause the engine."""
    run.weights.pause(step)


@perform.register(Resume)
def resume(_: Resume, run: WorkloadRun) -> None:
    """Resume the engine."""
    run.weights.resume()


@perform.register(Sleep)
def sleep(step: Sleep, run: WorkloadRun) -> None:
    """Let the engine sleep."""
    run.weights.sleep(step)


@perform.register(Wake)
def wake(step: Wake, run: WorkloadRun) -> None:
    """Wake the engine up."""
    run.weights.wake(step)
