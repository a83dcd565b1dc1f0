"""Prompts for pooled answers: those of other families, and near-collisions, each asked for its vector.

The first choice of every draw is the simplest: a prompt, the same again, and one that differs in a token.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.pooling import TASK_CAPABILITIES, Task
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.features.pressure.workloads import partly_evicted, prefix_sharers, working_sets
from coldproof.harness.features.salts.workloads import NEARLY_EQUAL, salted
from coldproof.harness.workload.generators.chats import trees
from coldproof.harness.workload.generators.edges import any_length, chunks_at_edges, crowds, long_neighbours
from coldproof.harness.workload.generators.identities import load_tenant
from coldproof.harness.workload.generators.prompts import BASE_WITH_ADAPTER, WorkloadLimits, nearly_equal, stems
from coldproof.harness.workload.generators.reuse import returns, traffic
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.transform import change_requests

MOST_UNITS = 15  # of a prompt of which each token has a vector


def tasks_and_limits(limits: WorkloadLimits, *, each_token: bool) -> tuple[tuple[Task, ...], WorkloadLimits]:
    """Return the tasks to draw from, and the limits for them. With `each_token`, those of one vector for each token
    come first, and workloads are smaller, because all the vectors are compared and stored. There are no variations:
    these add requests for tokens.
    """
    limits = msgspec.structs.replace(limits, guidance=None, varied=False)
    known = [task for task, needed in TASK_CAPABILITIES.items() if needed in limits.can]
    ones = tuple(task for task in known if not task.of_each_token)
    if not each_token:
        return ones, limits
    longest = min(limits.longest, MOST_UNITS * limits.unit)
    smaller = msgspec.structs.replace(limits, longest=longest, most_tokens=min(limits.most_tokens, 3 * longest))
    return (*(task for task in known if task.of_each_token), *ones), smaller


@st.composite
def pooled_neighbours(
    draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, each_token: bool = False
) -> Workload:
    """Draw a prompt, the same again, and prompts that differ from it in a token, in their length or in their salt or
    adapter; one by one and then several at once. With `each_token`, some of them ask for a vector of each token.
    """
    tasks, limits = tasks_and_limits(limits, each_token=each_token)
    stem = draw(stems(limits))
    tails = [Segment("tail", draw(st.sampled_from(limits.sizes((2 * limits.unit, limits.unit, 1, 5)))))]
    salt, other = draw(st.sampled_from(NEARLY_EQUAL))
    steps: list[Step] = []
    if with_adapter and draw(st.booleans()):
        steps.append(load_tenant(limits))

    def asks(*segments: Segment, salt: str | None = salt, adapter: str | None = None) -> Request:
        response_options = ResponseOptions(pooled=draw(st.sampled_from(tasks)))
        return Request(prompt=Prompt(segments), salt=salt, adapter=adapter, max_tokens=0, options=response_options)

    whole = (stem, *tails)
    sent = [asks(*whole), asks(*whole), asks(draw(nearly_equal(limits, stem)), *tails), asks(*whole, salt=other)]
    sent += [asks(*whole, adapter="tenant")] if steps else []
    for _ in range(draw(st.integers(0, limits.most(4)))):
        match draw(st.sampled_from(("near", "shorter", "longer", "again"))):
            case "near":
                near = draw(nearly_equal(limits, stem))
                sent.append(asks(near, *tails))
            case "shorter":
                cut = draw(st.sampled_from((1, limits.unit, limits.unit // 2)))
                sent.append(asks(msgspec.structs.replace(stem, length=max(1, stem.length - cut))))
            case "longer":
                sent.append(asks(*whole, Segment("more", draw(st.sampled_from((1, limits.unit + 1))))))
            case "again":
                sent.append(draw(st.sampled_from(sent)))
    steps += [Burst(requests=(one,)) for one in sent]
    if draw(st.booleans()):
        steps.append(Burst(requests=together(draw(st.permutations(sent))[:4], limits)))
    return Workload(tuple(steps))


def together(requests: Sequence[Request], limits: WorkloadLimits) -> tuple[Request, ...]:
    """Return the requests that may run at the same time."""
    if limits.may_mix(BASE_WITH_ADAPTER):
        return tuple(requests)
    return tuple(one for one in requests if one.adapter == requests[0].adapter)


@st.composite
def pooled_traffic(
    draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, each_token: bool = False
) -> Workload:
    """Draw a workload of another family, in which each request asks for a pooled answer. Next turns follow a prompt
    without an answer.
    """
    tasks, limits = tasks_and_limits(limits, each_token=each_token)
    families = [returns(limits), salted(limits, with_adapter=with_adapter)]
    if not limits.slow:
        families += [trees(limits, chat=False), traffic(limits)]
    if limits.pool is not None and limits.pool <= limits.longest and not limits.slow:  # a longest prompt fills it
        families += [working_sets(limits), partly_evicted(limits), prefix_sharers(limits)]
    if limits.rare:
        families += [chunks_at_edges(limits), crowds(limits), long_neighbours(limits), any_length(limits)]
    task = draw(st.sampled_from(tasks))
    mixed = len(tasks) > 1 and draw(st.booleans())
    workload = draw(st.one_of(families))
    if not mixed:
        return change_requests(workload, functools.partial(as_pooled, task=task))
    return change_requests(workload, lambda request: as_pooled(request, task=draw(st.sampled_from(tasks))))


def as_pooled(request: Request, *, task: Task) -> Request:
    """Return a request for a pooled answer to the same prompt."""
    response_options = ResponseOptions(pooled=task)
    return msgspec.structs.replace(request, max_tokens=0, options=response_options, abort=None, chat=False)
