"""Yields smaller variants of a failing workload by removing parts of it. Pure: the caller runs the variants.

Hypothesis shrinks the draws from which a workload was generated. This module removes whole steps of the workload
itself, and so needs far fewer runs, which are slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Step, Workload, renumbered
from coldproof.harness.workload.validity import is_valid

CROWD = 4  # requests of a burst, besides the failing one, from which on halves are removed first


def smaller(workload: Workload, failing: int | None, *, keep: tuple[type, ...] = ()) -> Iterator[Workload]:
    """Yield valid variants, largest cut first: the steps after the failing request, then steps, then single requests.

    `keep`: step types that are not removed, because without them the workload would fail in a different way.
    """
    numbers = {number: step for number, step, _ in workload.requests()}
    fails = None if failing is None else numbers[failing]
    if fails is not None and fails + 1 < len(workload.steps):
        yield Workload(workload.steps[: fails + 1])
    may_go = [place for place, step in enumerate(workload.steps) if place != fails and not isinstance(step, keep)]
    for gone in parts(may_go):
        doomed = {number for number, step in numbers.items() if step in gone}
        yield from without(workload, steps=gone, requests=doomed)
    for position in range(len(workload.steps)):
        crowd = [n for n, s in numbers.items() if s == position and n != failing]
        if len(crowd) >= CROWD:  # one by one would take too long
            yield from without(workload, steps=set(), requests=set(crowd[: len(crowd) // 2]))
            yield from without(workload, steps=set(), requests=set(crowd[len(crowd) // 2 :]))
    for number, step in numbers.items():
        if number != failing and len(workload.steps[step].requests) > 1:
            yield from without(workload, steps=set(), requests={number})
    for number in numbers:
        yield from plainer(workload, number)


def parts(positions: list[int]) -> Iterator[set[int]]:
    """Yield halves, then quarters, and so on down to single positions, last first (Zeller's delta debugging)."""
    size = len(positions) // 2
    while size > 1:
        yield from (set(positions[i : i + size]) for i in reversed(range(0, len(positions), size)))
        size //= 2
    yield from ({position} for position in reversed(positions))


def joined(workload: Workload, failing: int | None) -> Iterator[Workload]:
    """Yield variants with one longer request in place of two successive ones: fewer requests then fill a pool."""
    continued = {request.prompt.continues for _, _, request in workload.requests()}
    numbered = {step: number for number, step, _ in workload.requests()}
    for position in range(len(workload.steps) - 1):
        pair = tuple(alone(step) for step in workload.steps[position : position + 2])
        numbers = {numbered.get(position), numbered.get(position + 1)}
        if None in pair or failing in numbers or continued & numbers:
            continue
        one, other = (request for request in pair if request is not None)
        if (one.adapter, one.salt) == (other.adapter, other.salt):
            length = sum(segment.length for request in (one, other) for segment in request.prompt.segments)
            prompt = Prompt((Segment(one.prompt.segments[0].name, length),))
            longer = Burst(requests=(msgspec.structs.replace(one, prompt=prompt),))
            for left in without(workload, steps={position + 1}, requests={numbered[position + 1]}):
                yield Workload((*left.steps[:position], longer, *left.steps[position + 1 :]))


def alone(step: Step) -> Request | None:
    """Return the request of a step that is a single plain request with a prompt of its own; None for other steps."""
    if step.meanwhile is not None or len(step.requests) != 1:
        return None
    (request,) = step.requests
    return request if request.prompt.segments and request.prompt.continues is None and not request.chat else None


def plainer(workload: Workload, number: int) -> Iterator[Workload]:
    """Yield variants of one request without its abort, its priority, its response options or its delay."""
    _, position, request = next(entry for entry in workload.requests() if entry[0] == number)
    plain = {"abort": None, "priority": 0, "options": request.options.plain(), "offset_ms": 0}
    first = min(n for n, s, _ in workload.requests() if s == position)
    burst = workload.steps[position]
    for field, value in plain.items():
        if getattr(request, field) != value:
            asked = msgspec.structs.replace(request, **{field: value})
            requests = (*burst.requests[: number - first], asked, *burst.requests[number - first + 1 :])
            changed = msgspec.structs.replace(burst, requests=requests)
            yield Workload((*workload.steps[:position], changed, *workload.steps[position + 1 :]))


def without(workload: Workload, *, steps: set[int], requests: set[int]) -> Iterator[Workload]:
    """Yield the workload without these steps and requests, renumbered, if the rest is valid."""
    numbers = [number for number, _, _ in workload.requests() if number not in requests]
    new = {old: i for i, old in enumerate(numbers)}
    left: list[Step] = []
    first = 0
    for position, step in enumerate(workload.steps):
        count = len(step.requests)
        if position not in steps:
            if isinstance(step, Burst):
                kept = [r for i, r in enumerate(step.requests) if first + i not in requests]
                if any(r.prompt.continues is not None and r.prompt.continues not in new for r in kept):
                    return
                step = msgspec.structs.replace(step, requests=tuple(renumbered(r, new) for r in kept))
            left.append(step)
        first += count
    candidate = Workload(tuple(left))
    if is_valid(candidate):
        yield candidate
