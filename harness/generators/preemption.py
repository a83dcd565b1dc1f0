"""Requests that fit into the pool when they begin and no longer when they have decoded for a while."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import Capability
from harness.generators.pressure import pool_of
from harness.generators.prompts import Grounds
from harness.workload import Burst, Prompt, Request, Segment, Step, Workload

ASIDE = 4  # units of the model's length: a prelude, what an answer has too much, a turn behind it, and edges


@st.composite
def crowds(draw: st.DrawFn, grounds: Grounds, *, afterwards: bool) -> Workload:
    """Two to four requests that outgrow the pool together, later and more urgent ones among them.

    `afterwards`: then each prompt again and next turns of the answers, which may hit what the preempted ones left, or
    what took its place.
    """
    pool = pool_of(grounds) // grounds.unit
    most = grounds.longest // grounds.unit - ASIDE  # so that each can outgrow its share of the pool
    count = max(draw(st.sampled_from((4, 2, 3))), -(-pool // most))
    share = max(2, pool // count)  # blocks that each can have if all are to stay
    prompt = max(grounds.unit // 2, (share * grounds.unit) // 2 + draw(st.sampled_from((2, 0, -2))))
    answer = (share * grounds.unit) // 2 + grounds.unit + 3
    shared = draw(st.sampled_from((None, None, Segment("prelude", grounds.unit))))
    requests = []
    for i in range(count):
        own = Segment(f"request {i}", prompt)
        late = draw(st.sampled_from((0, 0, 60))) if i else 0
        requests.append(
            Request(
                prompt=Prompt((own,) if shared is None else (shared, own)),
                max_tokens=answer,
                offset_ms=late,
                priority=draw(st.sampled_from((0, 0, 5, -5))) if Capability.PRIORITY in grounds.can else 0,
            )
        )
    steps: list[Step] = [Burst(requests=tuple(requests))]
    if afterwards:
        for number in draw(st.permutations(range(count))):
            again = Prompt((Segment("turn", 5),), continues=number) if draw(st.booleans()) else requests[number].prompt
            steps.append(Burst(requests=(Request(prompt=again, max_tokens=8),)))
    return Workload(tuple(steps))
