"""Circumstances of a failure: limits on loads and stores."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones


@circumstances(175)
def of_limits(failure: Failure) -> Iterable[str]:
    """Return which limits requests had."""
    options = [request.options for request in failure.requests]
    return true_ones(
        {
            "limit on loads": any(one.most_loaded is not None for one in options),
            "limit on stores": any(one.most_stored is not None for one in options),
        }
    )
