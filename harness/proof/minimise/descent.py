"""Minimises a counterexample step by step: it continues from the first variant that still fails.

This is done twice: on the engine that found it, where runs are cheap, and on fresh engines after it was confirmed. The
first result may fail less often, or only because of state that the engine has kept; the second does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from coldproof.harness.judgement.trial import Failing
from coldproof.harness.workload.halves import count_of, half_of, twice
from coldproof.harness.workload.steps import Workload

Variants = Callable[[Workload, int | None], Iterable[Workload]]


def of_both_halves(variants: Variants) -> Variants:
    """Return variants of which both halves are changed alike, where a workload runs twice."""

    def changed(workload: Workload, failing: int | None) -> Iterable[Workload]:
        half = half_of(workload)
        if half is None:
            return variants(workload, failing)
        return map(twice, variants(half, None if failing is None else failing % count_of(half)))

    return changed


def descend(
    failing: Failing, variants: Variants, fails: Callable[[Workload], Failing | None], *, until: float
) -> Failing:
    """Return the smallest failure by the same checker that was found before `until` (seconds of the monotonic clock).

    `variants` yields variants of a workload, given its failing request's number, largest cut first. `fails` runs a
    variant and returns its failure, or None.
    """
    while True:
        for candidate in variants(failing.workload, failing.judgement.worst().request):
            found = fails(candidate) if time.monotonic() < until else None
            if found is not None and found.judgement.worst().checker == failing.judgement.worst().checker:
                failing = found
                break
        else:
            return failing
