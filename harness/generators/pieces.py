"""Prompts made of the same pieces: some left out, some in another order, some behind others than before."""

from __future__ import annotations

from hypothesis import strategies as st

from harness.generators.adapters import Life, Stage
from harness.generators.prompts import Grounds, answers_lengths
from harness.workload import Burst, Prompt, Request, Segment, Workload

PIECES = "abcde"
ADAPTERS = ("tenant", "Tenant")


@st.composite
def rearranged(draw: st.DrawFn, grounds: Grounds, *, adapters: bool = False) -> Workload:
    """A prompt of several pieces, then others that leave out a piece or change their order, and perhaps the first one
    again. With `adapters`, of several adapters in turn; of the base model only before them, for who goes on from an
    adapter's KV there fails without any piece moved (LORA-4, adapters and base model apart).
    """
    stage = Stage(draw, grounds, Life())
    models: list[str | None] = [None]
    if adapters:
        for name in ADAPTERS:
            stage.load(name)
        models = [*ADAPTERS, None]
    count = draw(st.integers(2, max(2, min(len(PIECES), grounds.longest // 2 // (2 * grounds.unit + len(PIECES))))))
    edge = draw(st.sampled_from((grounds.unit, 2 * grounds.unit, grounds.unit + 1, grounds.unit - 1)))
    pieces = [Segment(name, edge + i) for i, name in enumerate(PIECES[:count])]
    asked = pieces
    for _ in range(1 + draw(st.integers(1, 4))):
        whom = draw(st.sampled_from(models))
        models = [name for name in models if name is not None] if whom is not None else models
        request = Request(prompt=Prompt(tuple(asked)), adapter=whom, max_tokens=draw(answers_lengths(grounds)))
        stage.steps.append(Burst(requests=(request,)))
        left = draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=count, unique=True))
        if draw(st.booleans()):
            left.sort(key=pieces.index)
        asked = draw(st.sampled_from((left, left, pieces)))
    return Workload(tuple(stage.steps))


@st.composite
def outgrown(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """An answer that outgrows the context, once or twice over; before it and after it requests that fit, which share
    their beginning with it, go on from its answer, or have nothing to do with it."""
    stage = Stage(draw, grounds, Life())
    length = draw(st.sampled_from((grounds.longest // 2, grounds.longest // 4, 3 * grounds.longest // 4)))
    long = Prompt((Segment("long", length),))
    over = draw(st.sampled_from((grounds.unit, 1, grounds.longest)))
    steps = stage.steps
    if draw(st.booleans()):
        steps.append(Burst(requests=(Request(prompt=Prompt((Segment("long", length // 2),))),)))
    for _ in range(draw(st.integers(1, 2))):
        tokens = grounds.longest - length + over
        steps.append(Burst(requests=(Request(prompt=long, max_tokens=tokens),)))
        for _ in range(draw(st.integers(1, 3))):
            part = Segment("long", draw(st.sampled_from((length, length // 2, length - grounds.unit))))
            fitting = draw(st.sampled_from(((part,), (part, Segment("tail", 5)), (Segment("strange", length // 2),))))
            steps.append(Burst(requests=(Request(prompt=Prompt(fitting)),)))
    return Workload(tuple(steps))
