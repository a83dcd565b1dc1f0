"""Prompts made of the same parts: some left out, some in another order, some after other parts than before.

Also prompts of clients that cut their history to its newest part.
"""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.harness.features.lora.workloads import AdapterLifecycle, WorkloadBuilder
from coldproof.harness.workload.generators.prompts import WorkloadLimits, answer_lengths
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload

SEGMENT_NAMES = "abcde"
ADAPTERS = ("tenant", "Tenant")
FEWER = (40, 8, 2, 1)  # tokens of a cut history that a prompt begins with


@st.composite
def rearranged(draw: st.DrawFn, limits: WorkloadLimits, *, adapters: bool = False) -> Workload:
    """Draw a prompt of several parts, then prompts without a part or in another order, and perhaps the first one again.

    With `adapters`, the requests use several adapters in turn. Base-model requests come only before them: an engine
    that continues from an adapter's KV fails there without any part reused at another position (LORA-4, adapters and
    base model isolated).
    """
    builder = WorkloadBuilder(draw, limits, AdapterLifecycle())
    models: list[str | None] = [None]
    if adapters:
        for name in ADAPTERS:
            builder.load(name)
        models = [*ADAPTERS, None]
    fitting = limits.longest // 2 // (2 * limits.unit + len(SEGMENT_NAMES))
    count = draw(st.integers(2, max(2, min(len(SEGMENT_NAMES), fitting))))
    edge = draw(st.sampled_from((limits.unit, 2 * limits.unit, limits.unit + 1, limits.unit - 1)))
    pieces = [Segment(name, edge + i) for i, name in enumerate(SEGMENT_NAMES[:count])]
    chosen = pieces
    for _ in range(1 + draw(st.integers(1, limits.most(4, least=1)))):
        model = draw(st.sampled_from(models))
        models = [name for name in models if name is not None] if model is not None else models
        request = Request(prompt=Prompt(tuple(chosen)), adapter=model, max_tokens=draw(answer_lengths(limits)))
        builder.steps.append(Burst(requests=(request,)))
        left = draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=count, unique=True))
        if draw(st.booleans()):
            left.sort(key=pieces.index)
        chosen = draw(st.sampled_from((left, left, pieces)))
    return Workload(tuple(builder.steps))


@st.composite
def exceeding_context(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw an answer that exceeds the context, once or twice.

    Before and after it, requests that fit share its beginning or have nothing in common with it.
    """
    builder = WorkloadBuilder(draw, limits, AdapterLifecycle())
    length = draw(st.sampled_from((limits.longest // 2, limits.longest // 4, 3 * limits.longest // 4)))
    long = Prompt((Segment("long", length),))
    over = draw(st.sampled_from((limits.unit, 1, limits.longest)))
    steps = builder.steps
    if draw(st.booleans()):
        steps.append(Burst(requests=(Request(prompt=Prompt((Segment("long", length // 2),))),)))
    for _ in range(draw(st.integers(1, 2))):
        tokens = limits.longest - length + over
        steps.append(Burst(requests=(Request(prompt=long, max_tokens=tokens),)))
        for _ in range(draw(st.integers(1, 3))):
            part = Segment("long", draw(st.sampled_from((length, length // 2, length - limits.unit))))
            fitting = draw(st.sampled_from(((part,), (part, Segment("tail", 5)), (Segment("strange", length // 2),))))
            steps.append(Burst(requests=(Request(prompt=Prompt(fitting)),)))
    return Workload(tuple(steps))


@st.composite
def cut_histories(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw an answer that exceeds the context, then prompts that begin with what a context shift leaves of it.

    A client that cuts its history to the newest half sends such prompts. Where the context is full, an engine drops its
    older half, so the rest begins at the middle of the context. The first prompt begins with all of the rest, each
    later one with fewer of its tokens than the one before: a slot that kept the rest still has these. The last prompt
    has nothing in common with it, so that no later workload can begin with what this one left.
    """
    length = draw(st.sampled_from((limits.longest // 2, limits.longest // 4, 3 * limits.longest // 4)))
    long = Prompt((Segment("long", length),))
    over = draw(st.sampled_from((limits.unit, 1)))
    start = (limits.longest - draw(st.sampled_from((1, 0)))) // 2  # full, or full when the next token is added
    fewer = draw(st.lists(st.sampled_from(FEWER), unique=True))
    prompts = [long]
    for end in (None, *(start + left for left in sorted(fewer, reverse=True))):
        prompts.append(Prompt((Segment(f"turn {len(prompts)}", 5),), continues=0, start=start, end=end))
    prompts.append(Prompt((Segment("strange", limits.unit),)))
    answers = [limits.longest - length + over, *(8 for _ in prompts[1:])]
    requests = [Request(prompt=p, max_tokens=n) for p, n in zip(prompts, answers, strict=True)]
    return Workload(tuple(Burst(requests=(request,)) for request in requests))
