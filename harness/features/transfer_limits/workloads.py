"""Prompts that a pool loses and a second tier has, sent with limits on what is loaded and stored."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.features.tiers.workloads import emptied, evicted_and_sent_again, sent_again_after_gaps
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import WorkloadLimits, related_prompts, stems
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS
from coldproof.harness.workload.transform import change_requests

CUT_LOADS = "requests that may load less than earlier ones have computed of their prompt"
CUT_STORES = "requests after one that was allowed to store less than both share"


@guided
@st.composite
def limited(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt whose store may be limited, and the same or a related one once the pool is emptied, with a limit on
    loads or without, alone or beside others of it; then the same without limits.

    A limit is nothing, a block, a part of one, a little less than the first prompt, or more than there is. At last a
    prompt ends inside a block, with a limit inside that block: a part of it may be stored, too.
    """
    unit, missing = limits.unit, draw(lead(limits, (CUT_LOADS, CUT_STORES)))
    stem = draw(stems(limits))
    first = Request(prompt=draw(related_prompts(limits, stem, None)), max_tokens=draw(st.sampled_from((8, 1))))
    length = NONCE_TOKENS + sum(segment.length for segment in first.prompt.segments)
    less = tuple(max(1, length - fewer) for fewer in (unit // 4 + 1, 2))  # inside the block that the prompt ends in
    amounts = st.sampled_from(limits.sizes((unit, 0, *less, unit + unit // 2, 2 * unit, 1, 2 * pool_tokens(limits))))
    perhaps = st.one_of(st.none(), amounts)
    stored = draw(amounts if missing == CUT_STORES else perhaps)
    steps: list[Step] = [Burst(requests=(with_limits(first, stored=stored),))]
    for _ in range(draw(st.sampled_from(limits.sizes((1, 2))))):
        again = Request(prompt=draw(related_prompts(limits, stem, None)), max_tokens=8)
        loaded = draw(amounts if missing == CUT_LOADS else perhaps)
        one = with_limits(msgspec.structs.replace(again, prompt=first.prompt), loaded=loaded)
        other = with_limits(again, loaded=draw(perhaps), stored=draw(perhaps))
        together = draw(st.sampled_from(((one,), (one, first), (other,), (other, one))))
        steps += [emptied(draw, limits), Burst(requests=together), Burst(requests=(first,))]
    cut = Request(prompt=Prompt((Segment("cut", unit + unit // 2 + 1 - NONCE_TOKENS),)), max_tokens=1)
    steps.append(Burst(requests=(with_limits(cut, stored=unit + draw(st.sampled_from((1, unit // 4)))),)))
    return Workload((*steps, emptied(draw, limits), Burst(requests=(first, cut)), Idle(20)))


def with_limits(request: Request, *, loaded: int | None = None, stored: int | None = None) -> Request:
    """Return a request with limits. It has no other option: both are fields of one struct."""
    return msgspec.structs.replace(request, options=ResponseOptions(most_loaded=loaded, most_stored=stored))


@guided
@st.composite
def with_some_limits(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a workload of second tiers in which every second or third plain request has limits."""
    workload = draw(st.one_of(evicted_and_sent_again(limits), sent_again_after_gaps(limits)))
    every = draw(st.sampled_from((2, 3)))
    loaded, stored = draw(st.sampled_from((limits.unit, 0, None))), draw(st.sampled_from((limits.unit + 1, None, 0)))
    seen = 0

    def some(request: Request) -> Request:
        nonlocal seen
        seen += 1
        if seen % every or request.options != PLAIN:
            return request
        return with_limits(request, loaded=loaded, stored=stored)

    return change_requests(workload, some)
