"""Circumstances of a failure: ranks."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones


@circumstances(110)
def of_ranks(failure: Failure) -> Iterable[str]:
    """Return whether a request was sent to one rank."""
    return true_ones({"ranks": any(request.rank is not None for request in failure.requests)})
