"""All faults, by name. Mechanisms and public reports are those of the field: see docs/faults.md."""

from __future__ import annotations

from harness.faults import (
    aborts,
    content,
    control,
    counts,
    events,
    groups,
    hits,
    identity,
    leaks,
    liveness,
    preemption,
    resumption,
    surface,
)
from harness.faults.fault import Fault

MECHANISMS = (
    identity,
    content,
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
