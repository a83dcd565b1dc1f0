"""Reached states of sizes and numbers: lengths, differences, identities, the age of the engine."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.harness.history.engine_age import deeds
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.reach.model import SIZES
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import Timeline, bucket
from coldproof.harness.workload.steps import adapter_changes

LONGEST = 0.9  # of what fits
AGES = (1, 2, 3, 16, 64)


@states(*SIZES, order=400)
def sizes(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of all sizes and numbers."""
    for outcome in timeline.history.outcomes:
        yield "length", length(timeline, outcome), divergence(timeline, outcome)
        if outcome.answered and outcome.tokens:
            total = len(outcome.prompt) + len(outcome.tokens)
            yield "answer", answer(timeline, len(outcome.tokens)), timeline.end(total)
    yield from variety(timeline)
    yield from ages(timeline)


def length(timeline: Timeline, outcome: Outcome) -> str:
    """Return how long a prompt is: a row of the model."""
    if len(outcome.prompt) >= LONGEST * timeline.history.shape.max_model_tokens:
        return "longest"
    return bucket(len(outcome.prompt) // timeline.block, 0, 1, 3, 9, 33)


def divergence(timeline: Timeline, outcome: Outcome) -> str:
    """Return where a prompt differs from the earlier one of its identity that shares most: a column of the model."""
    earlier = [o for o in timeline.earlier(outcome) if timeline.alike(o, outcome)]
    if not earlier:
        return "new"
    nearest = max(earlier, key=lambda o: (timeline.shared(o, outcome), o.prompt == outcome.prompt))
    shared, own = timeline.shared(nearest, outcome), len(outcome.prompt)
    if nearest.prompt == outcome.prompt:
        return "equal"
    if shared == own:
        return "shorter"
    if shared >= len(nearest.prompt):
        return "continues"
    if shared < timeline.block:
        return "first"
    return "last" if shared >= (own - 1) // timeline.block * timeline.block else "middle"


def answer(timeline: Timeline, tokens: int) -> str:
    """Return how long an answer is: a row of the model."""
    if tokens <= 2:
        return str(tokens)
    blocks = tokens / timeline.block
    return "short" if blocks < 1 else "block" if blocks < 4 else "long"


def variety(timeline: Timeline) -> Iterator[Cell]:
    """Yield how many names, contents and salts the workload has."""
    loads = adapter_changes(timeline.history.workload)
    numbers = {
        "names": len({load.name for load in loads}),
        "contents": len({load.content for load in loads}),
        "salts": len({o.partition.salt for o in timeline.history.outcomes} - {None}),
    }
    for what, number in numbers.items():
        if number:
            yield "variety", what, bucket(number, 1, 2, 3, 5, 16)


def ages(timeline: Timeline) -> Iterator[Cell]:
    """Yield which events of this run were the n-th ones in the life of the engine."""
    before, new = msgspec.structs.asdict(timeline.history.age), msgspec.structs.asdict(deeds(timeline.history))
    for what, number in new.items():
        first, last = before[what] + 1, before[what] + number
        for edge, beyond in zip(AGES, (*AGES[1:], float("inf")), strict=True):
            if number and first < beyond and last >= edge:
                yield "age", what, str(edge)
