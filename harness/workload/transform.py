"""Functions that return a workload with something replaced or removed, without checking whether the result is valid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

import msgspec

from coldproof.adapters.protocol.requests import Abort
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.workload.steps import (
    Burst,
    Change,
    Meanwhile,
    Request,
    Reset,
    SetAdapter,
    Step,
    Unload,
    Workload,
)

Changed = TypeVar("Changed", SetAdapter, Reset)


def without_steps(workload: Workload, *kinds: type) -> Workload:
    """Return the workload without steps of these kinds, and without changes of these kinds during a burst."""
    steps = [step for step in workload.steps if not isinstance(step, kinds)]
    for at, step in enumerate(steps):
        if step.meanwhile is not None:
            left = [change for change in step.meanwhile.changes if not isinstance(change, kinds)]
            steps[at] = msgspec.structs.replace(step, meanwhile=with_changes(step.meanwhile, left))
    return Workload(tuple(steps))


def with_changes(meanwhile: Meanwhile, changes: Sequence[Change]) -> Meanwhile | None:
    """Return the same moment with other changes; None without any."""
    if not changes:
        return None
    return msgspec.structs.replace(meanwhile, change=changes[0], then=tuple(changes[1:]))


def change_adapter_steps(workload: Workload, change: Callable[[SetAdapter], SetAdapter]) -> Workload:
    """Return the workload with `change` applied to every adapter load and change."""
    return change_steps(workload, SetAdapter, change)


def without_adapters(workload: Workload) -> Workload:
    """Return the workload with all requests to the base model, and without loads of adapters."""
    bare = without_steps(workload, SetAdapter, Unload)
    return change_requests(bare, lambda request: msgspec.structs.replace(request, adapter=None))


def with_reset_scope(workload: Workload, scope: tuple[ResetScope, ...]) -> Workload:
    """Return the workload with resets that cover the prefix cache and `scope`."""
    return change_steps(workload, Reset, lambda reset: msgspec.structs.replace(reset, scope=scope))


def change_steps(workload: Workload, kind: type[Changed], change: Callable[[Changed], Changed]) -> Workload:
    """Return the workload with `change` applied to every step of a kind, also during a burst."""
    steps = list(workload.steps)
    for at, step in enumerate(steps):
        if isinstance(step, kind):
            steps[at] = change(step)
        elif step.meanwhile is not None:
            made = [change(one) if isinstance(one, kind) else one for one in step.meanwhile.changes]
            steps[at] = msgspec.structs.replace(step, meanwhile=with_changes(step.meanwhile, made))
    return Workload(tuple(steps))


def change_requests(workload: Workload, change: Callable[[Request], Request]) -> Workload:
    """Return the workload with `change` applied to every request."""
    steps = list(workload.steps)
    for at, step in enumerate(steps):
        if isinstance(step, Burst):
            steps[at] = msgspec.structs.replace(step, requests=tuple(map(change, step.requests)))
    return Workload(tuple(steps))


def with_unique_salts(workload: Workload) -> Workload:
    """Return the workload with a salt of its own for every request, so that none can hit what another one computed."""
    numbers = itertools.count()
    return change_requests(workload, lambda request: msgspec.structs.replace(request, salt=f"alone-{next(numbers)}"))


def change_request(workload: Workload, number: int | None, change: Callable[[Request], Request]) -> Workload:
    """Return the workload with `change` applied to one request."""
    numbers = iter(range(sum(1 for _ in workload.requests())))
    return change_requests(workload, lambda request: change(request) if next(numbers) == number else request)


def with_timed_aborts(workload: Workload, seconds: Mapping[int, float]) -> Workload:
    """Return the workload with aborts after a fixed time, where a client waited for a stage (`Abort.at`).

    `seconds` maps the number of a request to the time of its abort. A reproducer cannot sample the engine's gauges.
    """
    numbers = itertools.count()

    def timed(request: Request) -> Request:
        number, abort = next(numbers), request.abort
        if abort is None or abort.at is None or number not in seconds:
            return request
        return msgspec.structs.replace(request, abort=Abort(after_ms=max(1, round(1000 * seconds[number]))))

    return change_requests(workload, timed)


def one_request_per_burst(workload: Workload, only: Container[int] | None = None) -> Workload:
    """Return the workload with each request in its own burst, for all bursts or for those at the steps `only`.

    The changes during a burst follow the burst's first request.
    """
    steps: list[Step] = []
    for at, step in enumerate(workload.steps):
        if not isinstance(step, Burst) or (only is not None and at not in only):
            steps.append(step)
            continue
        alone_each = [Burst(requests=(msgspec.structs.replace(r, offset_ms=0),)) for r in step.requests]
        steps += alone_each if step.meanwhile is None else [alone_each[0], *step.meanwhile.changes, *alone_each[1:]]
    return Workload(tuple(steps))
