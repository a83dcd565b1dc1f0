"""Smaller variants of a failing workload, by leaving things out. Pure: whoever asks runs them.

Hypothesis shrinks the draws that a workload was made of; this works on the workload itself, where one cut takes away
whole steps, and so finishes in a few runs what shrinking would need many slow ones for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from adapters.base import PLAIN
from harness.workload import (
    Burst,
    Idle,
    Prompt,
    Request,
    RestoreState,
    Segment,
    SetAdapter,
    Step,
    Unload,
    Workload,
    renumbered,
    save_of,
)

CROWD = 4  # requests of a burst, beside the failing one


def smaller(workload: Workload, failing: int | None, *, keep: tuple[type, ...] = ()) -> Iterator[Workload]:
    """Valid variants, boldest cut first: what follows the failing request, then steps, then requests of bursts.

    `keep`: steps of these kinds stay, without which it would be another failure: loads where their number matters.
    """
    numbers = {number: step for number, step, _ in workload.requests()}
    if failing is not None and numbers[failing] + 1 < len(workload.steps):
        yield Workload(workload.steps[: numbers[failing] + 1])
    fails = numbers[failing] if failing is not None else None
    may_go = [place for place, step in enumerate(workload.steps) if place != fails and not isinstance(step, keep)]
    for gone in parts(may_go):
        doomed = {number for number, step in numbers.items() if step in gone}
        yield from without(workload, steps=gone, requests=doomed)
    for position in range(len(workload.steps)):
        crowd = [n for n, s in numbers.items() if s == position and n != failing]
        if len(crowd) >= CROWD:  # halves first: one by one would take too long
            yield from without(workload, steps=set(), requests=set(crowd[: len(crowd) // 2]))
            yield from without(workload, steps=set(), requests=set(crowd[len(crowd) // 2 :]))
    for number, step in numbers.items():
        burst = workload.steps[step]
        if number != failing and isinstance(burst, Burst) and len(burst.requests) > 1:
            yield from without(workload, steps=set(), requests={number})
    for number in numbers:
        yield from plainer(workload, number)


def parts(positions: list[int]) -> Iterator[set[int]]:
    """Halves, then quarters, and so on down to each one, the last of them first (Zeller's delta debugging)."""
    size = len(positions) // 2
    while size > 1:
        yield from (set(positions[i : i + size]) for i in reversed(range(0, len(positions), size)))
        size //= 2
    yield from ({position} for position in reversed(positions))


def joined(workload: Workload, failing: int | None) -> Iterator[Workload]:
    """Variants with one longer request in place of two that follow one another: what fills a pool does so in fewer."""
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
    """The request of a step that is nothing but one request for a prompt of its own."""
    if not isinstance(step, Burst) or step.meanwhile is not None or len(step.requests) > 1:
        return None
    (request,) = step.requests
    return request if request.prompt.segments and request.prompt.continues is None and not request.chat else None


def plainer(workload: Workload, number: int) -> Iterator[Workload]:
    """The workload with one request asked more plainly: no abort, no priority, nothing beside tokens, no delay."""
    plain = {"abort": None, "priority": 0, "surface": PLAIN, "offset_ms": 0}
    _, position, request = next(entry for entry in workload.requests() if entry[0] == number)
    first = min(n for n, s, _ in workload.requests() if s == position)
    burst = workload.steps[position]
    for field, value in plain.items():
        if isinstance(burst, Burst) and getattr(request, field) != value:
            asked = msgspec.structs.replace(request, **{field: value})
            requests = (*burst.requests[: number - first], asked, *burst.requests[number - first + 1 :])
            changed = msgspec.structs.replace(burst, requests=requests)
            yield Workload((*workload.steps[:position], changed, *workload.steps[position + 1 :]))


def without(workload: Workload, *, steps: set[int], requests: set[int]) -> Iterator[Workload]:
    """The workload without some steps and requests, renumbered; nothing where what is left makes no sense."""
    numbers = [number for number, _, _ in workload.requests() if number not in requests]
    new = {old: i for i, old in enumerate(numbers)}
    left: list[Step] = []
    first = 0
    for position, step in enumerate(workload.steps):
        count = len(step.requests) if isinstance(step, Burst) else 0
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


def is_valid(workload: Workload) -> bool:
    """Whether it can be run as it says: names loaded before use, states saved before they are restored, continuations
    of earlier steps, sane sizes.
    """
    return (
        names_are_loaded(workload)
        and all(save_of(workload, n) is not None for n, s in enumerate(workload.steps) if isinstance(s, RestoreState))
        and all(step.ms >= 0 for step in workload.steps if isinstance(step, Idle))
        and any(workload.requests())
        and all(
            is_sane(request, {n: earlier.chat for n, s, earlier in workload.requests() if s < step})
            for _, step, request in workload.requests()
        )
    )


def is_sane(request: Request, earlier: dict[int, bool]) -> bool:
    """Whether a request has positive lengths, changed and swapped tokens within their segment, and continues an earlier
    one; and a chat something to say.

    `earlier`: request number -> whether it was a chat; a chat goes on from a chat.
    """
    segments = request.prompt.segments
    return (
        request.max_tokens > 0
        and request.offset_ms >= 0
        and all(s.length > 0 and (s.changed is None or 0 <= s.changed < s.length) for s in segments)
        and all(s.swapped is None or 0 <= s.swapped < s.length - 1 for s in segments)
        and request.surface.answers > 0
        and (bool(segments) or not request.chat)
        and (request.prompt.continues is None or earlier.get(request.prompt.continues) is request.chat)
    )


def names_are_loaded(workload: Workload) -> bool:
    """Whether every name is loaded when it is asked for, changed or unloaded."""
    loaded: set[str] = set()
    for step in workload.steps:
        match step:
            case SetAdapter(name=name):
                loaded.add(name)
            case Unload(name=name):
                if name not in loaded:
                    return False
                loaded.remove(name)
            case Burst(requests=requests, meanwhile=meanwhile):
                asked = {r.adapter for r in requests if r.adapter is not None}
                change = meanwhile.change if meanwhile else None
                unknown = isinstance(change, SetAdapter) and change.name not in loaded
                if not requests or not asked <= loaded or unknown:
                    return False
    return True
