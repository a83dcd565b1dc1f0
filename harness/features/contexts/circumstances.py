"""Circumstances of a failure: contexts that are too short."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones
from coldproof.harness.judgement.request_sizes import outgrows


@circumstances(50)
def of_contexts(failure: Failure) -> Iterable[str]:
    """Return whether an answer was longer than its context."""
    return true_ones({"context shift": any(outgrows(failure.history, one) for one in failure.history.outcomes)})
