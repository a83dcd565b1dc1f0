"""Circumstances of a failure: restored states."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones
from coldproof.harness.workload.steps import RestoreState


@circumstances(60)
def of_saved_state(failure: Failure) -> Iterable[str]:
    """Return whether a state was restored."""
    return true_ones({"restored": any(isinstance(step, RestoreState) for step in failure.history.workload.steps)})
