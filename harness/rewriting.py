"""A workload with something in it replaced or left out. Pure; whether that can be run is for others to say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping

import msgspec

from adapters.base import Abort
from harness.workload import Burst, Request, SetAdapter, Step, Workload


def leaving_out(workload: Workload, *kinds: type) -> Workload:
    """The workload without steps of these kinds, nor changes of them in the midst of a burst."""
    return Workload(
        tuple(
            msgspec.structs.replace(step, meanwhile=None)
            if isinstance(step, Burst) and step.meanwhile is not None and isinstance(step.meanwhile.change, kinds)
            else step
            for step in workload.steps
            if not isinstance(step, kinds)
        )
    )


def with_changes(workload: Workload, change: Callable[[SetAdapter], SetAdapter]) -> Workload:
    """The workload with every adapter load and change replaced."""
    steps: list[Step] = []
    for step in workload.steps:
        if isinstance(step, SetAdapter):
            steps.append(change(step))
        elif isinstance(step, Burst) and step.meanwhile is not None and isinstance(step.meanwhile.change, SetAdapter):
            made = msgspec.structs.replace(step.meanwhile, change=change(step.meanwhile.change))
            steps.append(msgspec.structs.replace(step, meanwhile=made))
        else:
            steps.append(step)
    return Workload(tuple(steps))


def all_changed(workload: Workload, change: Callable[[Request], Request]) -> Workload:
    """The workload with every request replaced."""
    return Workload(
        tuple(
            msgspec.structs.replace(step, requests=tuple(map(change, step.requests)))
            if isinstance(step, Burst)
            else step
            for step in workload.steps
        )
    )


def one_changed(workload: Workload, number: int | None, change: Callable[[Request], Request]) -> Workload:
    """The workload with one request replaced."""
    numbers = iter(range(sum(1 for _ in workload.requests())))
    return all_changed(workload, lambda request: change(request) if next(numbers) == number else request)


def as_timed(workload: Workload, seconds: Mapping[int, float]) -> Workload:
    """The workload with clients that leave after so many seconds, by their requests' numbers, where they had looked at
    the engine's gauges (`Abort.at`): who replays it by hand has none."""
    numbers = itertools.count()

    def timed(request: Request) -> Request:
        number, abort = next(numbers), request.abort
        if abort is None or abort.at is None or number not in seconds:
            return request
        return msgspec.structs.replace(request, abort=Abort(after_ms=max(1, round(1000 * seconds[number]))))

    return all_changed(workload, timed)


def taken_apart(workload: Workload, only: Container[int] | None = None) -> Workload:
    """Each request alone, of all bursts or of those at these steps; a change in the midst of a burst comes behind its
    first request.
    """
    steps: list[Step] = []
    for at, step in enumerate(workload.steps):
        if not isinstance(step, Burst) or (only is not None and at not in only):
            steps.append(step)
            continue
        alone_each = [Burst(requests=(msgspec.structs.replace(r, offset_ms=0),)) for r in step.requests]
        steps += alone_each if step.meanwhile is None else [alone_each[0], step.meanwhile.change, *alone_each[1:]]
    return Workload(tuple(steps))
