"""Requests that fit into the pool when they start, and no longer after they have decoded for a while."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Idle, Prompt, Request, Route, Segment, SetAdapter, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS

RESERVED_UNITS = 4  # units of the model's length: a shared prefix, the excess of an answer, a turn after it, and edges


@guided
@st.composite
def outgrowing_requests(
    draw: st.DrawFn, limits: WorkloadLimits, *, afterwards: bool, adapters: bool = True
) -> Workload:
    """Draw two to four requests that together outgrow the pool, some of them later or more urgent.

    Each may come later than the last one and be more urgent, so that one is preempted in a step that has it already
    (vllm PR#28558). One may ask for a pattern; with `adapters`, all may use an adapter. With `afterwards`, each prompt
    or a next turn of its answer follows, which may hit what the preempted requests left, or what replaced it.
    """
    pool = pool_tokens(limits) // limits.unit
    most = limits.longest // limits.unit - RESERVED_UNITS  # so that each can exceed its share of the pool
    count = max(draw(st.sampled_from((4, 2, 3))), -(-pool // most))
    share = max(2, pool // count)  # blocks for each, if none is preempted
    filled = draw(st.booleans())
    answer = (share * limits.unit) // 2 + limits.unit + 3
    if limits.slow:  # almost all of the prompt, so that few tokens outgrow the share
        prompt = (share - 1) * limits.unit - NONCE_TOKENS + draw(st.sampled_from((2, 0, -2)))
        answer = limits.unit + 5
    elif filled:  # then decode must reach the next block while the filler's prompt is still being computed
        prompt = share // 2 * limits.unit - NONCE_TOKENS - draw(st.sampled_from((3, 1, 6)))
    else:
        prompt = max(limits.unit // 2, (share * limits.unit) // 2 + draw(st.sampled_from((2, 0, -2))))
    shared = draw(st.sampled_from((None, None, Segment("prelude", limits.unit))))
    names = (None, None, "tenant") if adapters and Capability.ADAPTER_CHOICE in limits.can else (None,)
    adapter = draw(st.sampled_from(names))
    response_options = draw(answer_options(limits, answer))
    later_is_more_urgent = Capability.PRIORITY in limits.can and draw(st.booleans())
    latest = count - (2 if filled else 1)  # the request that is preempted first
    priorities = (0, 0, 5, -5) if Capability.PRIORITY in limits.can else (0,)
    requests = []
    for i in range(count):
        own = Segment(f"request {i}", prompt)
        late = draw(st.sampled_from((0, 0, 60))) if i else 0
        requests.append(
            Request(
                prompt=Prompt((own,) if shared is None else (shared, own)),
                adapter=adapter,
                options=response_options if i == latest else PLAIN,
                max_tokens=answer,
                offset_ms=20 * i if later_is_more_urgent else late,
                priority=-i if later_is_more_urgent else draw(st.sampled_from(priorities)),
            )
        )
    if filled:
        requests[-1] = filler(draw, limits, requests[:-1])
    steps: list[Step] = []
    if adapter is not None:
        content = limits.contents[0]
        steps.append(SetAdapter(name=adapter, content=content, path=f"files-{content}", route=Route.LOAD))
    steps.append(Burst(requests=tuple(requests)))
    if afterwards:
        for number in draw(st.permutations(range(count)))[: limits.most(count, least=2)]:
            again = Prompt((Segment("turn", 5),), continues=number) if draw(st.booleans()) else requests[number].prompt
            steps.append(Burst(requests=(Request(prompt=again, adapter=adapter, max_tokens=8),)))
    steps.append(Idle(20))
    return Workload(tuple(steps))


def answer_options(limits: WorkloadLimits, answer: int) -> st.SearchStrategy[ResponseOptions]:
    """Return response options for one of the requests: mostly none, otherwise a pattern as long as the answer.

    The state of a grammar must continue when its request resumes. At each token, the pattern shows how far the answer
    has come.
    """
    kinds = [PLAIN, PLAIN]
    if Capability.STRUCTURED_OUTPUT in limits.can:
        kinds.append(ResponseOptions(pattern=f"[a-f]{{{answer // 2}}}[0-9]{{{answer - answer // 2}}}"))
    return st.sampled_from(kinds)


def filler(draw: st.DrawFn, limits: WorkloadLimits, others: list[Request]) -> Request:
    """Return a request whose prompt takes the room that the others leave when they start.

    It takes many steps to compute, and may lose its blocks before they are written.
    """
    held = sum(-(-(NONCE_TOKENS + sum(s.length for s in r.prompt.segments)) // limits.unit) for r in others)
    blocks = max(2, pool_tokens(limits) // limits.unit - held - draw(st.sampled_from((0, 1))))
    room = min(blocks * limits.unit, limits.longest - 2 * limits.unit)
    length = room - NONCE_TOKENS - draw(st.sampled_from((3, 0)))
    return Request(
        adapter=others[0].adapter,
        prompt=Prompt((Segment("filler", length),)),
        max_tokens=8,
        offset_ms=draw(st.sampled_from((0, 20))),
        priority=draw(st.sampled_from((0, 5))) if Capability.PRIORITY in limits.can else 0,
    )
