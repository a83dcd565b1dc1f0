"""Stories with gaps in which the pool loses what it holds, so that a second tier has to bring it back.

Two ways to lose it: a cache reset (which leaves a second tier alone), and other prompts that need the whole pool.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from adapters.base import Abort, Capability
from harness.generators.adapters import Life, lives, neighbours, reloads
from harness.generators.chats import conversations, trees
from harness.generators.pressure import pool_of
from harness.generators.prompts import Grounds, stems
from harness.generators.reuse import repeats, returns
from harness.generators.salts import salted
from harness.workload import (
    NONCE_TOKENS,
    Burst,
    Idle,
    Prompt,
    Request,
    Reset,
    Segment,
    Step,
    Workload,
    renumbered,
)


@st.composite
def asked_back(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Repeats, returns, trees and conversations, with gaps."""
    return with_gaps(
        draw,
        grounds,
        draw(
            st.one_of(
                repeats(grounds),
                returns(grounds),
                edited(grounds),
                conversations(grounds, chat=False),
                trees(grounds, chat=False),
            )
        ),
    )


@st.composite
def edited(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A prompt, the same with one token of its first block changed, and that again: from the second block on it has two
    prompts' worth of equal tokens behind unequal ones."""
    stem = draw(stems(grounds))
    tail = Segment("tail", draw(st.sampled_from((grounds.unit, 5))))
    near = msgspec.structs.replace(stem, changed=draw(st.sampled_from((0, grounds.unit // 2))))
    prompts = [Prompt((stem, tail)), Prompt((near, tail)), Prompt((near, tail))]
    return Workload(tuple(Burst(requests=(Request(prompt=prompt),)) for prompt in prompts))


@st.composite
def evicted(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A, what takes the whole pool, A; perhaps both once more, with something behind A."""
    stem = draw(stems(grounds))
    tail = Segment("tail", grounds.unit + 1)
    steps: list[Step] = [Burst(requests=(Request(prompt=Prompt((stem,))),))]
    for segments in draw(st.sampled_from((((stem,),), ((stem,), (stem, tail)), ((stem, tail), (stem, tail))))):
        steps += [flood(grounds, "flood"), Burst(requests=(Request(prompt=Prompt(segments)),))]
    return Workload(tuple(steps))


@st.composite
def aborted_loads(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A client hangs up in the first steps of a request whose prompt the pool has lost, so that it has to be loaded;
    beside it somebody waits for all that it held. Then the same again, and silence."""
    length = draw(st.sampled_from((3, 2))) * grounds.unit
    can_reset = Capability.CACHE_RESET in grounds.can
    steps: list[Step] = []
    for i in range(draw(st.sampled_from((1, 2)))):
        ask = Request(prompt=Prompt((Segment(f"victim {i}", length),)))
        abort = Abort(after_ms=draw(st.sampled_from((10, 20, 30))))
        taker = msgspec.structs.replace(
            flood(grounds, f"taker {i}").requests[0], offset_ms=draw(st.sampled_from((20, 10)))
        )
        steps.append(Burst(requests=(ask,)))
        steps.append(Reset() if can_reset and draw(st.booleans()) else flood(grounds, "flood"))
        steps.append(Burst(requests=(msgspec.structs.replace(ask, abort=abort), taker)))
        steps += [Burst(requests=(ask,)), Idle(20)]
    return Workload(tuple(steps))


@st.composite
def partitions(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Equal prompts under salts and adapters that are not equal, with gaps."""
    stories = [salted(grounds, with_adapter=Capability.ADAPTER_CHOICE in grounds.can)]
    if Capability.RUNTIME_LORA in grounds.can:
        stories.append(neighbours(grounds))
    if Capability.RUNTIME_LORA in grounds.can and len(grounds.contents) > 1:
        stories.append(lives(grounds, Life(routes=reloads(grounds)[::-1])))
    return with_gaps(draw, grounds, draw(st.one_of(stories)))


def with_gaps(draw: st.DrawFn, grounds: Grounds, story: Workload) -> Workload:
    """The story with a gap before some of its bursts; requests that follow are renumbered."""
    can_reset = Capability.CACHE_RESET in grounds.can
    steps: list[Step] = []
    numbers: dict[int, int] = {}  # of a request in the story -> in what is told here
    told = asked = 0
    for step in story.steps:
        if isinstance(step, Burst):
            for gap in draw(st.sampled_from(GAPS if told and can_reset else GAPS_BY_FLOOD if told else ((),))):
                added = Reset() if gap == "reset" else flood(grounds, draw(st.sampled_from(("flood", "other flood"))))
                asked += len(added.requests) if isinstance(added, Burst) else 0
                steps.append(added)
            requests = []
            for request in step.requests:
                numbers[told] = asked
                requests.append(renumbered(request, numbers))
                told, asked = told + 1, asked + 1
            step = msgspec.structs.replace(step, requests=tuple(requests))
        steps.append(step)
    return Workload(tuple(steps))


GAPS = (("reset",), (), ("flood",), ("flood", "reset"))
GAPS_BY_FLOOD = (("flood",), ())


def flood(grounds: Grounds, name: str) -> Burst:
    """A request that takes as much of the pool as one may have: nothing else stays."""
    tokens = min(pool_of(grounds), grounds.longest) - NONCE_TOKENS - 4
    return Burst(requests=(Request(prompt=Prompt((Segment(name, tokens),)), max_tokens=4),))
