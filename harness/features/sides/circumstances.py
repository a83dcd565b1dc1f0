"""Circumstances of a failure: prefill and decode apart."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.adapters.protocol.sides import ENGINES
from coldproof.harness.case.circumstances import Failure, circumstances, true_ones


@circumstances(120)
def of_sides(failure: Failure) -> Iterable[str]:
    """Return what happened between the two engines, or to one of them or the tier."""
    history = failure.history
    return true_ones(
        {
            "late hand-over": any(request.hand_over_ms for request in failure.requests),
            "a side restarted": any(restart.side in ENGINES for restart in history.side_restarts),
            "the tier restarted": any(restart.side not in ENGINES for restart in history.side_restarts),
            "one side first": bool(history.half_changed),
        }
    )
