"""Walks down from a counterexample to a smaller one: the first variant that still fails is gone on from.

It is done twice: on the engine that found it, where runs are cheap, and on fresh engines once it was confirmed there.
The first may pay for size with the rate at which it fails, or with a mark that the engine carries; the second does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from harness.requirement import Failing
from harness.workload import Workload

Variants = Callable[[Workload, int | None], Iterable[Workload]]


def descend(
    failing: Failing, variants: Variants, fails: Callable[[Workload], Failing | None], *, until: float
) -> Failing:
    """The smallest that was reached before `until` (seconds of the monotonic clock), failing by the same checker.

    `variants`: of a workload and its failing request's number, boldest first. `fails`: None where it does not.
    """
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in variants(failing.workload, failing.judgement.worst().request):
            found = fails(candidate) if time.monotonic() < until else None
            if found is not None and found.judgement.worst().checker == failing.judgement.worst().checker:
                failing, shrunk = found, True
                break
    return failing
