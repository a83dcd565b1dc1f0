"""Reached states of the scheduler: chunks, admissions, pool, queue, preemptions, priorities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coldproof.adapters.protocol.engine_steps import Chunk, EngineStep
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.reach.model import SCHEDULING
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import MOMENT, Phase, Start, Timeline, bucket

ROOM = 0.25  # of the pool that is free: less is scarce


@states(*SCHEDULING, order=200)
def scheduling(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of all steps, admissions, preemptions and ends."""
    begun: set[int] = set()  # requests with a chunk of the current prefill
    for step in timeline.steps:
        yield from of_step(timeline, step, begun)
    for start in timeline.starts:
        yield from admission(timeline, start)
    for outcome in timeline.history.outcomes:
        yield from preemptions(timeline, outcome)
        yield from ending(timeline, outcome)
    yield from priorities(timeline)
    for reset in timeline.history.resets:
        if timeline.steps:
            yield "queue", "reset", bucket(timeline.waiting(reset.began), 0, 1, 2)


def of_step(timeline: Timeline, step: EngineStep, begun: set[int]) -> Iterator[Cell]:
    """Yield the cells of one recorded step. `begun`: updated."""
    new = [one for one in step.admitted if not one.resumed]
    begun -= {int(one.request) for one in step.admitted}
    for chunk in step.chunks:
        part = part_of(chunk, begun)
        yield "chunk", part, timeline.end(chunk.end)
        yield "beside", part, beside(step, others=len(step.chunks) - 1)
    if new:
        count = bucket(len(new), 1, 2, 3, 8)
        resumed = len(step.admitted) - len(new)
        going_on = len(step.chunks) - len(step.admitted)
        marks = {"decode": step.decoding > 0, "prefill": going_on > 0, "resumed": resumed > 0}
        for mark in [mark for mark, holds in marks.items() if holds] or ["alone"]:
            yield "admitted", count, mark
    if step.evicted:
        kind = "decode" if not step.chunks else "chunk"
        kind = ("hit" if any(one.hit for one in step.admitted) else "miss") if step.admitted else kind
        yield "eviction", "first" if step.evicted_first else "later", kind


def part_of(chunk: Chunk, begun: set[int]) -> str:
    """Return which part of a prefill a chunk is: a row of the model. `begun`: requests with an earlier chunk."""
    number, last = int(chunk.request), chunk.end >= chunk.target
    first = number not in begun
    (begun.discard if last else begun.add)(number)
    if first:
        return "whole" if last else "first"
    return "last" if last else "middle"


def beside(step: EngineStep, *, others: int) -> str:
    """Return what a step does besides one chunk: a column of the model."""
    if step.decoding:
        return "both" if others else "decode"
    return "prefill" if others else "alone"


def admission(timeline: Timeline, start: Start) -> Iterator[Cell]:
    """Yield the cells of a request that begins to run."""
    outcome, at = start.outcome, start.at
    running = timeline.running(at, outcome)
    if start.resumed or start.hit:
        yield "sharers", "resumption" if start.resumed else "hit", sharers_key(timeline.sharers(outcome, at))
    if running and not start.resumed:
        for kind in mixtures([outcome, *running]):
            yield "running", bucket(len(running) + 1, 2, 3, 8, 16), kind
    if start.step is None:
        return
    kind = "resumed" if start.resumed else "hit" if start.hit else "miss"
    yield "pool", kind, pool_state(timeline, start.step, alone=not running)
    yield "queue", "resumption" if start.resumed else "admission", bucket(timeline.waiting(at, outcome), 0, 1, 2)
    if start.resumed:
        tokens = timeline.tokens_at(outcome, at)
        hit = timeline.hit_kind(start.hit or 0, len(outcome.prompt) + tokens)
        yield "resumption", progress(timeline, tokens), hit


def sharers_key(count: int) -> str:
    """Return the column for a number of other requests that share a block."""
    return bucket(count, 0, 1, 2, 3, 16)


def pool_state(timeline: Timeline, step: EngineStep, *, alone: bool) -> str:
    """Return how full the pool is after a step was scheduled: a column of the model."""
    if alone:
        return "alone"
    pool = timeline.history.shape.pool_blocks
    if step.free <= 1:
        return "full"
    return "scarce" if pool is not None and step.free < ROOM * pool else "room"


def mixtures(running: Sequence[Outcome]) -> Iterator[str]:
    """Yield which identities run at the same time: columns of the model."""
    adapters = {o.identities[-1].adapter for o in running}
    salts = {o.identities[-1].salt for o in running}
    marks = {"adapters": len(adapters - {None}) > 1, "base": None in adapters and len(adapters) > 1}
    marks["salts"] = len(salts) > 1
    yield from [mark for mark, holds in marks.items() if holds] or ["one"]


def progress(timeline: Timeline, tokens: int) -> str:
    """Return how far a request with so many tokens is: a row of the model."""
    if not tokens:
        return "prefill"
    return "first" if tokens == 1 else "few" if tokens < timeline.block else "many"


def preemptions(timeline: Timeline, outcome: Outcome) -> Iterator[Cell]:
    """Yield the cells of the preemptions of one request."""
    for number, lost in enumerate(outcome.preempted_at, 1):
        at = outcome.sent + lost - MOMENT
        yield "preemption", progress(timeline, timeline.tokens_at(outcome, at)), bucket(number, 1, 2, 3)
        yield "sharers", "preemption", sharers_key(timeline.sharers(outcome, at))
        if timeline.steps:
            yield "queue", "preemption", bucket(timeline.waiting(at, outcome), 0, 1, 2)


def ending(timeline: Timeline, outcome: Outcome) -> Iterator[Cell]:
    """Yield the cells of the end of one request that held blocks."""
    if outcome.error is not None or timeline.before_end(outcome) not in (Phase.PREFILL, Phase.DECODE):
        return
    event = "end" if outcome.aborted is None else "abort"
    yield "sharers", event, sharers_key(timeline.sharers(outcome, outcome.finished - MOMENT))
    if timeline.steps:
        yield "queue", event, bucket(timeline.waiting(outcome.finished - MOMENT, outcome), 0, 1, 2)


def priorities(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of requests with priorities. Only bursts of several priorities count."""
    wanted = {number: (step, request.priority) for number, step, request in timeline.history.workload.requests()}
    if timeline.history.engine_steps is None or not any(priority for _, priority in wanted.values()):
        return
    new = [start for start in timeline.starts if not start.resumed and start.outcome.request in wanted]
    for start in new:
        burst, priority = wanted[start.outcome.request]
        sign = "negative" if priority < 0 else "positive" if priority else "zero"
        beside = [other for other in new if other is not start and wanted[other.outcome.request][0] == burst]
        overtakes = any(
            other.outcome.sent <= start.outcome.sent and other.at > start.at
            for other in beside
            if arrived(other.outcome, start.outcome)
        )
        overtaken = any(other.at < start.at for other in beside if arrived(start.outcome, other.outcome))
        marks = {"overtakes": overtakes, "overtaken": overtaken, "preempted": bool(start.outcome.preempted_at)}
        for mark in [mark for mark, holds in marks.items() if holds] or ["order"]:
            yield "priority", sign, mark


def arrived(first: Outcome, then: Outcome) -> bool:
    """Return whether a request arrived before another one."""
    return (first.sent, first.request) < (then.sent, then.request)
