"""Cache resets, idle and under load, and clients that hang up: in the queue, in prefill, while decoding."""

from __future__ import annotations

from hypothesis import strategies as st

from adapters.base import Abort, Capability, Stage
from harness.generators.adapters import reloads
from harness.generators.pressure import pool_of
from harness.generators.prompts import Grounds, related_prompts, stems
from harness.workload import (
    Burst,
    Idle,
    Meanwhile,
    Prompt,
    Request,
    Reset,
    Route,
    Segment,
    SetAdapter,
    Step,
    Workload,
)


@st.composite
def resets(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """Warm up, reset, ask the same again; once while nothing runs and once in the midst of an answer.

    `aside` is what nobody has in use at a reset under load, and what nobody has asked since.
    """
    stem = draw(stems(grounds))
    ask, aside = (Burst(requests=(Request(prompt=Prompt((s,))),)) for s in (stem, Segment("aside", stem.length)))
    steps: list[Step] = [ask, Reset(), *beginning(draw, grounds, stem), ask, aside]
    steps += [*under_load(draw, grounds, stem), *beginning(draw, grounds, stem), ask, aside]
    for _ in range(draw(st.integers(0, 3))):
        more = draw(st.sampled_from(("ask", "reset", "idle", "load")))
        match more:
            case "ask":
                prompt = draw(related_prompts(grounds, stem, None))
                steps.append(Burst(requests=(Request(prompt=prompt, max_tokens=8),)))
            case "reset":
                steps += [Reset(), *beginning(draw, grounds, stem), ask]
            case "idle":
                steps.append(Idle(draw(st.sampled_from((20, 200)))))
            case "load":
                steps += [*under_load(draw, grounds, stem), ask, aside]
    return Workload(tuple(steps))


def beginning(draw: st.DrawFn, grounds: Grounds, stem: Segment, adapter: str | None = None) -> list[Step]:
    """Nothing, or the stem without its last block: what a reset left of its end is found again once somebody has
    computed what stands before, and not the end itself."""
    part = Prompt((Segment(stem.name, stem.length - grounds.unit),))
    return [Burst(requests=(Request(prompt=part, adapter=adapter),))] if draw(st.booleans()) else []


@st.composite
def changes_and_resets(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """An adapter's files change behind their path, and a reset follows, as is done where the cache's keys cannot tell
    (LORA-3); then all is asked again, twice. Whatever the reset has left is found under the old key and answers as the
    old files do.

    A second tier outlives a reset: with one, the files come from a path of their own.
    """
    route = reloads(grounds)[0]
    stem = draw(stems(grounds))
    ask = Burst(requests=(Request(prompt=Prompt((stem,)), adapter="tenant"),))
    steps: list[Step] = []
    contents = draw(st.permutations(grounds.contents))
    for content in contents[: draw(st.sampled_from((2, 3)))]:
        path = f"files-{content}" if Capability.SECOND_TIER in grounds.can else "files-of-tenant"
        steps.append(SetAdapter(name="tenant", content=content, path=path, route=route if steps else Route.LOAD))
        steps += [Reset(), *beginning(draw, grounds, stem, "tenant"), ask, ask] if len(steps) > 1 else [ask]
    return Workload(tuple(steps))


def under_load(draw: st.DrawFn, grounds: Grounds, stem: Segment) -> list[Step]:
    """A reset while one or two requests decode."""
    tokens = grounds.unit + grounds.unit // 2
    count = draw(st.sampled_from((1, 2)))
    busy = [Request(prompt=Prompt((stem, Segment(f"busy {i}", 5))), max_tokens=tokens) for i in range(count)]
    moment = draw(st.sampled_from((grounds.unit // 2, 1)))
    return [Burst(requests=tuple(busy), meanwhile=Meanwhile(change=Reset(), after_tokens=moment))]


@st.composite
def aborts(draw: st.DrawFn, grounds: Grounds) -> Workload:
    """A client hangs up at each stage, and the same prefix is asked at once, beside what still runs and after it."""
    steps: list[Step] = []
    stages = draw(st.permutations(("decode", "prefill", "queue")))
    for i, stage in enumerate(stages[: draw(st.sampled_from((3, 1, 2)))]):
        steps += aborted(draw, grounds, stage, f"victim {i}")
    steps.append(Idle(20))
    return Workload(tuple(steps))


def aborted(draw: st.DrawFn, grounds: Grounds, stage: str, name: str) -> list[Step]:
    """One abort and the retries."""
    most = min(grounds.longest - 2 * grounds.unit, pool_of(grounds) - 2 * grounds.unit)
    long = max(2 * grounds.unit, most * 3 // 4)
    retry_ms = draw(st.sampled_from((5, 40, 100)))  # over HTTP a client that looks where it is hangs up late
    crowd: list[Request] = []
    match stage:
        case "decode":
            length = draw(st.sampled_from((2 * grounds.unit, 3 * grounds.unit + 1)))
            after = draw(st.sampled_from((1, grounds.unit, grounds.unit // 2)))
            abort, tokens, moment = Abort(after_tokens=after), grounds.unit + 8, 150
        case "prefill":
            length, tokens = long, 8
            moment = draw(st.sampled_from((10, 20, 40)))
            abort = Abort(after_ms=moment, at=Stage.PREFILL)
        case _:
            length, tokens = draw(st.sampled_from((2 * grounds.unit, long))), 8
            # Together they need more than the pool and the step budget have: the last one has to wait.
            crowd = [Request(prompt=Prompt((Segment(f"crowd {i}", long),)), max_tokens=16) for i in range(3)]
            moment = draw(st.sampled_from((10, 30, 1)))
            abort = Abort(after_ms=moment, at=Stage.QUEUED)
    victim = Prompt((Segment(name, min(length, grounds.longest - tokens - grounds.unit)),))
    delay = 10 if crowd else 0
    request = Request(prompt=victim, max_tokens=tokens, abort=abort, offset_ms=delay)
    at_once = Request(prompt=victim, max_tokens=8, offset_ms=delay + moment + retry_ms)
    again = Request(prompt=Prompt((*victim.segments, Segment("tail", 5))), max_tokens=8)
    return [Burst(requests=(*crowd, request, at_once)), Burst(requests=(again,))]
