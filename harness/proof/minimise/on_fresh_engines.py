"""Minimises a confirmed case once more, on fresh engines.

The first minimisation runs on the engine that found the case. Its result may fail less often, and parts of it may be
needed only on that engine. Here a variant must fail as often as the case, and the smallest one is confirmed again.
"""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineError
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.judgement.trial import Failing
from coldproof.harness.proof.confirm.confirm import Confirmed, Observe
from coldproof.harness.proof.minimise.descent import Variants, descend
from coldproof.harness.workload.steps import Workload

Start = Callable[[], CheckedEngine | None]


def minimise_on_fresh_engines(
    confirmed: Confirmed,
    engine: CheckedEngine,
    *,
    another: Start | None,
    variants: Variants,
    observe: Observe,
    confirm: Callable[[Failing], Confirmed],
    until: float,
) -> Confirmed:
    """Return the case minimised, or unchanged if no smaller variant fails as often or it fails on no fresh engine.

    `another` starts an engine for each variant. Without it, all variants run on `engine`, which confirmed the case.
    `confirm` replays the smallest variant on an engine that has run nothing yet; only then it replaces the case.
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
            return fails_as_often(candidate, fresh, observe, checker, failed=needed, tries=most)
        except (EngineError, OracleError):
            return None

    case = Failing(confirmed.judgement.history.workload, confirmed.judgement, failed=failed, tries=tries)
    smallest = descend(case, variants, fails, until=until)
    if smallest is case:
        return confirmed
    smaller = confirm(smallest)
    times = smaller.reproduction.fresh_failed or 0
    return smaller if times * tries >= failed * (smaller.reproduction.fresh_tries or 1) else confirmed


def fails_as_often(
    workload: Workload, engine: CheckedEngine, observe: Observe, checker: str, *, failed: int, tries: int
) -> Failing | None:
    """Return the failure if a workload fails in at least `failed` of `tries` runs, else None.

    It stops as soon as the result is certain. Raises EngineError or OracleError.
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
