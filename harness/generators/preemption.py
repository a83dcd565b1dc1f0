"""Requests that fit into the pool when they begin and no longer when they have decoded for a while."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import PLAIN, Capability, Surface
from harness.generators.pressure import pool_of
from harness.generators.prompts import Grounds
from harness.workload import NONCE_TOKENS, Burst, Idle, Prompt, Request, Route, Segment, SetAdapter, Step, Workload

ASIDE = 4  # units of the model's length: a prelude, what an answer has too much, a turn behind it, and edges


@st.composite
def crowds(draw: st.DrawFn, grounds: Grounds, *, afterwards: bool, adapters: bool = True) -> Workload:
    """Two to four requests that outgrow the pool together, later and more urgent ones among them.

    One of them may ask for a pattern; with `adapters`, all may ask an adapter. `afterwards`: then each prompt again and
    next turns of the answers, which may hit what the preempted ones left, or what took its place.
    """
    pool = pool_of(grounds) // grounds.unit
    most = grounds.longest // grounds.unit - ASIDE  # so that each can outgrow its share of the pool
    count = max(draw(st.sampled_from((4, 2, 3))), -(-pool // most))
    share = max(2, pool // count)  # blocks that each can have if all are to stay
    filled = draw(st.booleans())
    if filled:  # then decode must soon reach the next block: while the filler's prompt is still being computed
        prompt = share // 2 * grounds.unit - NONCE_TOKENS - draw(st.sampled_from((3, 1, 6)))
    else:
        prompt = max(grounds.unit // 2, (share * grounds.unit) // 2 + draw(st.sampled_from((2, 0, -2))))
    answer = (share * grounds.unit) // 2 + grounds.unit + 3
    shared = draw(st.sampled_from((None, None, Segment("prelude", grounds.unit))))
    names = (None, None, "tenant") if adapters and Capability.ADAPTER_CHOICE in grounds.can else (None,)
    adapter = draw(st.sampled_from(names))
    surface, latest = draw(surfaces_of(grounds, answer)), count - (2 if filled else 1)  # who is preempted first
    requests = []
    for i in range(count):
        own = Segment(f"request {i}", prompt)
        late = draw(st.sampled_from((0, 0, 60))) if i else 0
        requests.append(
            Request(
                prompt=Prompt((own,) if shared is None else (shared, own)),
                adapter=adapter,
                surface=surface if i == latest else PLAIN,
                max_tokens=answer,
                offset_ms=late,
                priority=draw(st.sampled_from((0, 0, 5, -5))) if Capability.PRIORITY in grounds.can else 0,
            )
        )
    if filled:
        requests[-1] = filler(draw, grounds, requests[:-1])
    steps: list[Step] = []
    if adapter is not None:
        content = grounds.contents[0]
        steps.append(SetAdapter(name=adapter, content=content, path=f"files-{content}", route=Route.LOAD))
    steps.append(Burst(requests=tuple(requests)))
    if afterwards:
        for number in draw(st.permutations(range(count))):
            again = Prompt((Segment("turn", 5),), continues=number) if draw(st.booleans()) else requests[number].prompt
            steps.append(Burst(requests=(Request(prompt=again, adapter=adapter, max_tokens=8),)))
    steps.append(Idle(20))
    return Workload(tuple(steps))


def surfaces_of(grounds: Grounds, answer: int) -> st.SearchStrategy[Surface]:
    """What else than tokens one of a crowd asks for: mostly nothing. What is counted along with an answer has to go on
    where it was when its request comes back: a pattern as long as the answer says at each token how far it has come.
    """
    kinds = [PLAIN, PLAIN]
    if Capability.STRUCTURED_OUTPUT in grounds.can:
        kinds.append(Surface(pattern=f"[a-f]{{{answer // 2}}}[0-9]{{{answer - answer // 2}}}"))
    return st.sampled_from(kinds)


def filler(draw: st.DrawFn, grounds: Grounds, others: list[Request]) -> Request:
    """A request whose prompt takes the room that the others leave when they begin. It takes many steps to compute, and
    may lose its blocks before they are written."""
    held = sum(-(-(NONCE_TOKENS + sum(s.length for s in r.prompt.segments)) // grounds.unit) for r in others)
    blocks = max(2, pool_of(grounds) // grounds.unit - held - draw(st.sampled_from((0, 1))))
    room = min(blocks * grounds.unit, grounds.longest - 2 * grounds.unit)
    length = room - NONCE_TOKENS - draw(st.sampled_from((3, 0)))
    return Request(
        adapter=others[0].adapter,
        prompt=Prompt((Segment("filler", length),)),
        max_tokens=8,
        offset_ms=draw(st.sampled_from((0, 20))),
        priority=draw(st.sampled_from((0, 5))) if Capability.PRIORITY in grounds.can else 0,
    )
