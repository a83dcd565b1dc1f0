"""Scripts of cases about engines of two sides."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag
from coldproof.harness.case.reproducer.steps import step_call
from coldproof.harness.workload.steps import Burst, RestartSide


@flag("SIDES")
def has_sides(about: ScriptCase) -> bool:
    """Return whether two servers answer together, and a change is made on one of them first."""
    bursts = [step.meanwhile for step in about.workload.steps if isinstance(step, Burst)]
    return any(meanwhile is not None and bool(meanwhile.first) for meanwhile in bursts)


@flag("HEADERS")
def hands_over_late(about: ScriptCase) -> bool:
    """Return whether some requests say, in a header, how long after the prefill the decoder gets them."""
    return any(request.hand_over_ms for request in about.requests)


@step_call.register(RestartSide)
def restart_call(step: RestartSide, _loaded: set[str]) -> str:
    """Return a restart of a side as a call."""
    return f"story.client.restart_side({step.side.value!r})"
