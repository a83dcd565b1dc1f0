"""The second reduction, on fresh engines: what fails there as often as the case does, and is simpler to read.

The first one works on the engine that found the case: it may pay for size with the rate at which a case fails, and
what it keeps may be needed only there. Here a variant has to fail as often, and the smallest is confirmed anew.
"""

from __future__ import annotations

from collections.abc import Callable

from adapters.base import EngineError
from adapters.checked import CheckedEngine
from harness.confirm import Confirmed, Observe
from harness.descent import Variants, descend
from harness.oracle.base import OracleError
from harness.requirement import Failing
from harness.workload import Workload

Start = Callable[[], CheckedEngine | None]


def reduce_afresh(
    confirmed: Confirmed,
    engine: CheckedEngine,
    *,
    another: Start | None,
    variants: Variants,
    observe: Observe,
    confirm: Callable[[Failing], Confirmed],
    until: float,
) -> Confirmed:
    """The case made smaller, or itself where nothing smaller fails as often, or it does not fail on fresh engines.

    `another` starts an engine for each variant; without it all of them run on `engine`, which confirmed the case.
    `confirm` has the last word, on an engine that has run nothing yet.
    """
    failed, tries = confirmed.reproduction.fresh_failed or 0, confirmed.reproduction.fresh_tries or 0
    if not failed:
        return confirmed
    checker = confirmed.judgement.worst().checker

    def fails(candidate: Workload) -> Failing | None:
        fresh = another() if another is not None else engine
        if fresh is None or not fresh.alive():
            return None
        once = failed == tries and not candidate.depends_on_timing()
        needed, most = (1, 1) if once else (failed, tries)
        try:
            return as_often(candidate, fresh, observe, checker, failed=needed, tries=most)
        except (EngineError, OracleError):
            return None

    case = Failing(confirmed.judgement.history.workload, confirmed.judgement, failed=failed, tries=tries)
    smallest = descend(case, variants, fails, until=until)
    if smallest is case:
        return confirmed
    again = confirm(smallest)
    times = again.reproduction.fresh_failed or 0
    return again if times * tries >= failed * (again.reproduction.fresh_tries or 1) else confirmed


def as_often(
    workload: Workload, engine: CheckedEngine, observe: Observe, checker: str, *, failed: int, tries: int
) -> Failing | None:
    """The workload where it fails at least `failed` of `tries` times; no more runs than it takes to tell.

    Raises EngineError or OracleError where it cannot be told.
    """
    seen = []
    for done in range(1, tries + 1):
        judgement = observe(engine, workload)
        if judgement.findings and judgement.worst().checker == checker:
            seen.append(judgement)
        if len(seen) >= failed:
            return Failing(workload, seen[0], failed=len(seen), tries=done)
        if len(seen) + tries - done < failed:
            return None
    return None
