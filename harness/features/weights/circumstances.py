"""Circumstances of a failure: updates of the weights and pauses."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones


@circumstances(30)
def of_weights(failure: Failure) -> Iterable[str]:
    """Return whether the weights were updated and the engine paused."""
    return true_ones({"new weights": bool(failure.history.updates), "paused": bool(failure.history.pauses)})
