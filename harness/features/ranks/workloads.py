"""Workloads for an engine with several ranks: any workload, sent to each rank, or with a drawn rank for each request.

Where requests choose no rank, there is one cache, and the workload stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Request, Step, Workload, renumbered
from coldproof.harness.workload.transform import change_requests


@st.composite
def on_every_rank(draw: st.DrawFn, limits: WorkloadLimits, usual: st.SearchStrategy[Workload]) -> Workload:
    """Draw a workload and send each of its bursts to every rank, one rank after the other, in a drawn order.

    A burst with a change runs on all ranks at once or on one of them, so that a change may find only one rank busy.
    """
    workload = draw(usual)
    if limits.ranks == 1:
        return workload
    ranks = draw(st.permutations(range(limits.ranks)))
    steps: list[Step] = []
    numbers: list[dict[int, int]] = [{} for _ in ranks]  # of each rank: the number of a request -> that of its copy
    count = first = 0
    for step in workload.steps:
        if not isinstance(step, Burst):
            steps.append(step)
            continue
        busy: Sequence[int] = draw(st.sampled_from((ranks[:1], ranks))) if step.meanwhile is not None else ranks
        together: list[Request] = []
        for rank in busy:
            copies = [on_rank(request, rank, numbers[rank]) for request in step.requests]
            for i in range(len(copies)):
                numbers[rank][first + i] = count + i
            count += len(copies)
            together += copies
            if step.meanwhile is None:
                steps.append(Burst(requests=tuple(copies)))
        if step.meanwhile is not None:
            steps.append(Burst(requests=tuple(together), meanwhile=step.meanwhile))
            for rank in set(ranks) - set(busy):  # a next turn there continues what the busy rank answered
                numbers[rank] |= {first + i: numbers[busy[0]][first + i] for i in range(len(step.requests))}
        first += len(step.requests)
    return Workload(tuple(steps))


def on_rank(request: Request, rank: int, numbers: dict[int, int]) -> Request:
    """Return a request for a rank, which continues a request by its new number."""
    return msgspec.structs.replace(renumbered(request, numbers), rank=rank)


@st.composite
def on_drawn_ranks(draw: st.DrawFn, limits: WorkloadLimits, usual: st.SearchStrategy[Workload]) -> Workload:
    """Draw a workload, and for each request a rank: so a conversation may go on where nothing of it was computed."""
    workload = draw(usual)
    if limits.ranks == 1:
        return workload
    ranks = st.sampled_from(range(limits.ranks))
    return change_requests(workload, lambda request: msgspec.structs.replace(request, rank=draw(ranks)))
