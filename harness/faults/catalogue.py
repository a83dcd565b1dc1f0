"""All faults, by name. Each names a public report, or the class of reports, that it stands for."""

from __future__ import annotations

from harness.faults import (
    aborts,
    content,
    control,
    counts,
    events,
    groups,
    hits,
    holding,
    identity,
    leaks,
    liveness,
    metrics,
    partition,
    preemption,
    resumption,
    surface,
    tier_moves,
    tiers,
    weights,
)
from harness.faults.fault import Fault

MECHANISMS = (
    identity,
    partition,
    weights,
    content,
    holding,
    hits,
    counts,
    preemption,
    resumption,
    control,
    aborts,
    liveness,
    leaks,
    surface,
    groups,
    events,
    tiers,
    tier_moves,
    metrics,
)
FAULTS: dict[str, Fault] = {name: fault for mechanism in MECHANISMS for name, fault in mechanism.FAULTS.items()}


def listing() -> str:
    """All faults, a line each, under their mechanisms."""
    width = max(len(name) for name in FAULTS)
    lines = []
    for mechanism in MECHANISMS:
        lines += ["", f"{(mechanism.__doc__ or '').strip()}"]
        lines += [f"  {name:<{width}}  {fault.summary}" for name, fault in mechanism.FAULTS.items()]
    return "\n".join(lines[1:])
