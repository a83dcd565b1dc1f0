"""Cache resets, idle and under load, and client disconnects: while queued, in prefill, and in decode."""

from __future__ import annotations

from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.lora.workloads import reload_routes
from coldproof.harness.features.pressure.workloads import pool_tokens
from coldproof.harness.workload.generators.guidance import guided
from coldproof.harness.workload.generators.leads import lead
from coldproof.harness.workload.generators.prompts import WorkloadLimits, related_prompts, stems
from coldproof.harness.workload.steps import (
    ANNOUNCED_MS,
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

BEHIND = "requests that waited behind one that was aborted in the queue"
# By the name of the evidence that a trial may lack, the stage of a disconnect that shows it.
STAGES = {
    BEHIND: "queue",
    "requests aborted in prefill": "prefill",
    "requests aborted in the queue": "queue",
    "requests aborted while decoding": "decode",
}
MOST_PLACES = 8  # a crowd that takes all places is at most this large


@guided
@st.composite
def resets(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a warm-up, a reset and the same prompt again: once while nothing runs and once during an answer.

    `unused` is a prompt that no request uses at a reset under load.
    """
    stem = draw(stems(limits))
    repeat, unused = (Burst(requests=(Request(prompt=Prompt((s,))),)) for s in (stem, Segment("aside", stem.length)))
    steps: list[Step] = [repeat, Reset(), *without_last_block(draw, limits, stem), repeat, unused]
    steps += [*under_load(draw, limits, stem), *without_last_block(draw, limits, stem), repeat, unused]
    for _ in range(draw(st.integers(0, limits.most(3)))):
        more = draw(st.sampled_from(("ask", "reset", "idle", "load")))
        match more:
            case "ask":
                prompt = draw(related_prompts(limits, stem, None))
                steps.append(Burst(requests=(Request(prompt=prompt, max_tokens=8),)))
            case "reset":
                steps += [Reset(), *without_last_block(draw, limits, stem), repeat]
            case "idle":
                steps.append(Idle(draw(st.sampled_from((20, 200)))))
            case "load":
                steps += [*under_load(draw, limits, stem), repeat, unused]
    return Workload(tuple(steps))


def without_last_block(
    draw: st.DrawFn, limits: WorkloadLimits, stem: Segment, adapter: str | None = None
) -> list[Step]:
    """Draw nothing, or a request for the stem without its last block.

    If a reset left blocks of the stem's end, they can be hit only after the blocks before them were computed again.
    """
    part = Prompt((Segment(stem.name, stem.length - limits.unit),))
    return [Burst(requests=(Request(prompt=part, adapter=adapter),))] if draw(st.booleans()) else []


@st.composite
def resets_before_idle_gaps(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw prompts, each followed by a reset and an idle gap in which the engine has to announce it."""
    stem = draw(stems(limits))
    tail = Segment("tail", draw(st.sampled_from((limits.unit, 5))))
    steps: list[Step] = []
    for segments in draw(st.sampled_from((((stem,),), ((stem,), (stem,)), ((stem,), (stem, tail))))):
        sent = Burst(requests=(Request(prompt=Prompt(segments)),))
        steps += [sent, sent] if draw(st.booleans()) else [sent]
        steps += [Reset(), Idle(ANNOUNCED_MS)]
    return Workload(tuple(steps))


@st.composite
def changes_and_resets(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw changes of an adapter's files at the same path, each followed by a reset and the same prompt twice.

    Users reset where the cache's keys do not depend on the files (LORA-3). What the reset leaves is found by the old
    key and gives the old files' answer. A second tier survives a reset: with one, each content has its own path.
    """
    route = reload_routes(limits)[0]
    stem = draw(stems(limits))
    repeat = Burst(requests=(Request(prompt=Prompt((stem,)), adapter="tenant"),))
    steps: list[Step] = []
    contents = draw(st.permutations(limits.contents))
    for content in contents[: draw(st.sampled_from(limits.sizes((2, 3))))]:
        path = f"files-{content}" if Capability.SECOND_TIER in limits.can else "files-of-tenant"
        steps.append(SetAdapter(name="tenant", content=content, path=path, route=route if steps else Route.LOAD))
        again = len(steps) > 1
        steps += [Reset(), *without_last_block(draw, limits, stem, "tenant"), repeat, repeat] if again else [repeat]
    return Workload(tuple(steps))


def under_load(
    draw: st.DrawFn, limits: WorkloadLimits, stem: Segment, scope: tuple[ResetScope, ...] = ()
) -> list[Step]:
    """Draw a reset while one or two requests decode."""
    tokens = limits.unit // 2 + 4 if limits.slow else limits.unit + limits.unit // 2
    count = draw(st.sampled_from(limits.sizes((1, 2))))
    busy = [Request(prompt=Prompt((stem, Segment(f"busy {i}", 5))), max_tokens=tokens) for i in range(count)]
    moment = draw(st.sampled_from((limits.unit // 2, 1)))
    return [Burst(requests=tuple(busy), meanwhile=Meanwhile(change=Reset(scope), after_tokens=moment))]


@guided
@st.composite
def aborts(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a client disconnect in each stage. The same prefix is sent again at once and after the burst."""
    steps: list[Step] = []
    stages = draw(st.permutations(("decode", "prefill", "queue")))
    lacking = draw(lead(limits, tuple(STAGES)))
    if lacking:
        stages = [STAGES[lacking]]
    for i, stage in enumerate(stages[: draw(st.sampled_from((3, 1, 2)))]):
        steps += abort_and_retries(draw, limits, stage, f"victim {i}")
    steps.append(Idle(20))
    return Workload(tuple(steps))


def queueing_crowd(limits: WorkloadLimits) -> int:
    """Return how many requests make the next one wait: all that may run at the same time if these are few."""
    few = limits.requests is not None and limits.requests <= MOST_PLACES
    return max(3, limits.requests or 0) if few else 3


def abort_and_retries(draw: st.DrawFn, limits: WorkloadLimits, stage: str, name: str) -> list[Step]:
    """Draw one abort and its retries."""
    most = min(limits.longest - 2 * limits.unit, pool_tokens(limits) - 2 * limits.unit)
    scale = limits.scale if limits.small_pool is None else 1.0  # a small pool must be exceeded at any speed
    long = max(2 * limits.unit, int(most * 3 // 4 * scale))
    # Over HTTP, a client that samples the request's stage disconnects late.
    retry_ms = draw(st.sampled_from((5, 40, 100)))
    others: list[Request] = []
    behind: list[Request] = []
    match stage:
        case "decode":
            length = draw(st.sampled_from(limits.sizes((2 * limits.unit, 3 * limits.unit + 1))))
            tokens, moment = limits.unit + 8, 150
            after = draw(st.sampled_from(limits.sizes((1, limits.unit, limits.unit // 2, 2, tokens - 1))))
            abort = Abort(after_tokens=after)
        case "prefill":
            length, tokens = long, 8
            moment = draw(st.sampled_from((10, 20, 40, 1)))  # a busy server takes long to say the stage
            abort = Abort(after_ms=moment, at=Stage.PREFILL)
        case _:
            length, tokens = draw(st.sampled_from((2 * limits.unit, long))), 8
            # Together they exceed the pool and the step budget, or take all places of running requests, so that the
            # last one has to wait. Behind a single one, which uses up the step budget alone, the retry comes before
            # anything evicts what the abort left.
            crowd = draw(st.sampled_from((queueing_crowd(limits), 1)))
            size = min(long, 3 * long // crowd)
            others = [Request(prompt=Prompt((Segment(f"crowd {i}", size),)), max_tokens=16) for i in range(crowd)]
            moment = draw(st.sampled_from((10, 30, 1)))
            abort = Abort(after_ms=moment, at=Stage.QUEUED)
            for i in range(draw(st.sampled_from((1, 0, 2)))):  # they arrive after the victim, and before it is aborted
                prompt = Prompt((Segment(f"behind {i}", 2 * limits.unit),))
                behind.append(Request(prompt=prompt, max_tokens=8, offset_ms=10 + moment // 2))
    victim = Prompt((Segment(name, min(length, limits.longest - tokens - limits.unit)),))
    delay = 10 if others else 0
    request = Request(prompt=victim, max_tokens=tokens, abort=abort, offset_ms=delay)
    at_once = Request(prompt=victim, max_tokens=8, offset_ms=delay + moment + retry_ms)
    again = Request(prompt=Prompt((*victim.segments, Segment("tail", 5))), max_tokens=8)
    return [Burst(requests=(*others, request, *behind, at_once)), Burst(requests=(again,))]


@guided
@st.composite
def aborts_beside_sharers(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw disconnects of requests whose first blocks others still read, early, in the middle and late in an answer.

    Then new prompts take every free block in turn, so that blocks which an abort took from their other holders are
    overwritten.
    """
    unit, room = limits.unit, min(pool_tokens(limits), limits.longest)
    head = Segment("head", unit * draw(st.sampled_from((2, 1, 3))))
    tokens = unit // 2 + 4

    def request(name: str, max_tokens: int, offset: int = 0, abort: Abort | None = None) -> Request:
        return Request(prompt=Prompt((head, Segment(name, 5))), max_tokens=max_tokens, offset_ms=offset, abort=abort)

    holders = [
        request(f"holder {i}", draw(st.sampled_from((3 * unit, unit + 8))))
        for i in range(draw(st.sampled_from((1, 2))))
    ]
    victims = [
        request(
            f"victim {i}",
            tokens,
            offset=draw(st.sampled_from((0, 20))),
            abort=Abort(after_tokens=draw(st.sampled_from((1, 2, tokens // 2, tokens - 1)))),
        )
        for i in range(draw(st.sampled_from((1, 2, 3))))
    ]
    moment = draw(st.sampled_from((60, 20, 120)))
    newcomers = [
        Request(prompt=Prompt((Segment(f"newcomer {i}", 3 * unit - 8),)), max_tokens=4, offset_ms=moment + 10 * i)
        for i in range(room // (3 * unit) + 1)
    ]
    return Workload(
        (Burst(requests=(*holders, *victims, *newcomers)), Burst(requests=(request("again", 8),)), Idle(20))
    )
