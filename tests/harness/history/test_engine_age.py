"""The number of events of an engine is summed over its runs."""

from __future__ import annotations

from support.histories import burst, history, outcome, put

from coldproof.adapters.protocol.engine_steps import EngineStep
from coldproof.adapters.protocol.requests import Stage
from coldproof.adapters.protocol.weights import WeightRoute
from coldproof.harness.history.engine_age import age_after
from coldproof.harness.history.records import EngineAge, ResetRecord, WeightUpdate
from coldproof.harness.workload.steps import Workload

PROMPT = tuple(range(40))


def test_a_run_is_added_to_the_age() -> None:
    """Every kind of event is counted if it took effect: a refused reset and a refused update are not."""
    resets = tuple(ResetRecord(began=1.0, ended=1.0, success=success) for success in (True, False))
    updates = tuple(
        WeightUpdate(began=1.0, ended=1.0, version="v", weights="d", route=WeightRoute.PATH, error=error)
        for error in (None, "refused")
    )
    run = history(
        outcome(0, PROMPT, preempted_at=(0.1, 0.2), salt="s"),
        outcome(1, PROMPT, aborted=Stage.DECODE, salt="s"),
        outcome(2, PROMPT),
        workload=Workload((put("A"), put("B"), put("A", name="other"), burst())),
        resets=resets,
        updates=updates,
        engine_steps=(EngineStep(at=0.0, evicted=2), EngineStep(at=1.0, evicted=3)),
        age=EngineAge(requests=10, salts=1),
    )
    assert age_after(run) == EngineAge(
        requests=13, aborts=1, preemptions=2, evictions=5, resets=1, loads=3, updates=1, names=2, salts=2
    )
