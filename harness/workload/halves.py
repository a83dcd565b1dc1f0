"""Workloads that run twice: first on the engine with another implementation of one part, then on the one under test."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.harness.workload.steps import Burst, Restart, Step, Workload, renumbered

BETWEEN = Restart(EngineChange.IMPLEMENTATION)


def twice(workload: Workload) -> Workload:
    """Return the workload with its steps twice, and a restart between them."""
    count = count_of(workload)
    again = {number: number + count for number in range(count)}
    return Workload((*workload.steps, BETWEEN, *(shifted(step, again) for step in workload.steps)))


def shifted(step: Step, new: dict[int, int]) -> Step:
    """Return a step whose requests continue those with the new numbers."""
    if not isinstance(step, Burst):
        return step
    return msgspec.structs.replace(step, requests=tuple(renumbered(request, new) for request in step.requests))


def count_of(workload: Workload) -> int:
    """Return how many requests a workload has."""
    return sum(len(step.requests) for step in workload.steps)


def half_of(workload: Workload) -> Workload | None:
    """Return what runs twice in a workload; None if it does not run twice."""
    if workload.steps.count(BETWEEN) != 1:
        return None
    half = Workload(workload.steps[: workload.steps.index(BETWEEN)])
    return half if twice(half) == workload else None
