"""Gives the requests of a workload priorities, where the engine has them.

Priorities decide who waits and who is preempted, and nothing else: not what a request hits, nor what it leaves. So they
belong to requests of every kind, and not only to those that compete for the pool.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Workload

PRIORITIES = (0, 0, 5, -5, 1, -1)
NONE, ONE, OWN = "none", "one", "own"  # which priorities: none, one for all requests, each its own


def with_priorities(plain: st.SearchStrategy[Workload], limits: WorkloadLimits) -> st.SearchStrategy[Workload]:
    """Return a strategy that gives most workloads without priorities some, if the engine has them.

    Only for runs that draw rare states: elsewhere examples are few, and priorities change what a request meets.
    """
    if Capability.PRIORITY not in limits.can or not limits.rare or limits.slow:
        return plain
    return prioritised(plain)


@st.composite
def prioritised(draw: st.DrawFn, plain: st.SearchStrategy[Workload]) -> Workload:
    """Draw a workload whose requests have no priority, one priority, or each its own."""
    workload = draw(plain)
    kind = draw(st.sampled_from((NONE, ONE, OWN, OWN)))
    if kind == NONE or any(request.priority for _, _, request in workload.requests()):
        return workload
    if kind == ONE:
        return replaced(workload, itertools.repeat(draw(st.sampled_from(PRIORITIES[2:]))))
    random = Random(draw(st.integers(0, 2**32 - 1)))
    return replaced(workload, iter(lambda: random.choice(PRIORITIES), None))


def replaced(workload: Workload, priorities: Iterator[int]) -> Workload:
    """Return the workload with these priorities, in the order of its requests."""
    return msgspec.structs.replace(
        workload,
        steps=tuple(
            msgspec.structs.replace(
                step,
                requests=tuple(msgspec.structs.replace(one, priority=next(priorities)) for one in step.requests),
            )
            if isinstance(step, Burst)
            else step
            for step in workload.steps
        ),
    )
