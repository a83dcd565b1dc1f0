"""Loses the files of a tier."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.lost_files import LosesFiles
from coldproof.harness.execution.runner.perform import perform
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.lost_files.steps import LoseFiles


@perform.register(LoseFiles)
def lose(step: LoseFiles, run: WorkloadRun) -> int:
    """Lose the files; return their number."""
    if not isinstance(run.engine, LosesFiles):
        raise RequestRefused(501, run.engine.capabilities[Capability.TIER_FILES].evidence)
    return run.engine.lose_files(step.loss)
