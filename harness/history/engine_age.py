"""Counts what an engine does over all of its runs: a defect may show only at the n-th reset, load or preemption."""

from __future__ import annotations

import msgspec

from coldproof.harness.history.records import EngineAge, History
from coldproof.harness.workload.steps import adapter_changes


def deeds(history: History) -> EngineAge:
    """Return what the engine did in this run alone."""
    outcomes = history.outcomes
    loads = adapter_changes(history.workload)
    return EngineAge(
        requests=len(outcomes),
        aborts=sum(o.aborted is not None for o in outcomes),
        preemptions=sum(len(o.preempted_at) for o in outcomes),
        evictions=sum(step.evicted for step in history.engine_steps or ()),
        resets=sum(reset.success for reset in history.resets),
        loads=len(loads),
        updates=sum(update.error is None for update in history.updates),
        names=len({load.name for load in loads}),
        salts=len({o.partition.salt for o in outcomes} - {None}),
    )


def age_after(history: History) -> EngineAge:
    """Return the engine's age after this run."""
    before, new = msgspec.structs.asdict(history.age), msgspec.structs.asdict(deeds(history))
    return EngineAge(**{name: before[name] + new[name] for name in before})
