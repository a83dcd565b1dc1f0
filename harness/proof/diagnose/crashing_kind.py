"""Finds the kind of request that an engine dies of, by running a confirmed failure without it."""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineError
from coldproof.harness.execution.engines.deaths import ends_soon
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.oracle import OracleError
from coldproof.harness.proof.confirm.confirm import Observe
from coldproof.harness.workload.request_kinds import RequestKind, may_be_the_cause, without_kind
from coldproof.harness.workload.steps import Workload
from coldproof.harness.workload.validity import is_valid

SURVIVALS = 4  # runs without the kind that one engine has to survive before it dies of the workload with it
TRIES = 3  # runs of the workload in which it has to die: whether two requests meet in one step may be a matter of time


def got_no_answer(judgement: Judgement) -> bool:
    """Return whether requests got errors in place of answers, and not because of a stall."""
    return judgement.history.stalled is None and any(found.checker == "liveness" for found in judgement.findings)


def has_died(engine: CheckedEngine, judgement: Judgement) -> bool:
    """Return whether the engine died of the workload that was judged."""
    return got_no_answer(judgement) and (judgement.history.engine_lost is not None or ends_soon(engine))


def crashing_kind(
    workload: Workload, *, start: Callable[[], CheckedEngine | None], observe: Observe
) -> RequestKind | None:
    """Return the narrowest kind of request that ends the engine with this workload; None if no kind is the cause.

    One fresh engine must survive the workload without the kind several times, and then die of the workload.
    """
    for kind in (kind for kind in RequestKind if may_be_the_cause(kind, workload)):
        without = without_kind(workload, kind)
        engine = start() if is_valid(without) else None
        if engine is None:
            continue
        try:
            if not any(has_died(engine, observe(engine, without)) for _ in range(SURVIVALS)):
                return kind if any(has_died(engine, observe(engine, workload)) for _ in range(TRIES)) else None
        except (EngineError, OracleError):
            continue
    return None
