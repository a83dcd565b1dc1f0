"""Reached states of loads of adapters."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.harness.history.records import StepRecord
from coldproof.harness.judgement.reach.model import Family
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import Timeline
from coldproof.harness.workload.steps import Burst, Route, SetAdapter, Step

ROUTES = {
    Route.LOAD: "load",
    Route.IN_PLACE: "in-place",
    Route.UNLOAD_LOAD: "unload-load",
    Route.SWITCH: "switch",
}
LOAD = Family(
    id="load",
    title="Load of an adapter",
    row_is="route",
    column_is="requests that run",
    rows={
        "load": "first load",
        "in-place": "in-place reload",
        "unload-load": "unload, then load",
        "switch": "switch for all requests",
    },
    columns={"idle": "none", "same": "of this name", "others": "of others only"},
    absent={"load/same": "a name has no requests before its first load"},
)
RELOAD = Family(
    id="reload",
    title="Another content under a loaded name",
    row_is="route",
    column_is="files",
    rows={
        "in-place": "in-place reload",
        "unload-load": "unload, then load",
        "switch": "switch for all requests",
    },
    columns={"other": "in another path", "same": "in the same path", "back": "of an earlier content"},
)


def steps_with_loads(timeline: Timeline) -> Iterator[tuple[SetAdapter, StepRecord, float]]:
    """Yield the loads of adapters that were done, with their times."""
    for record in timeline.history.steps:
        step: Step = timeline.history.workload.steps[record.step]
        if record.error is not None:
            continue
        if isinstance(step, SetAdapter):
            yield step, record, record.started
        elif step.meanwhile is not None and record.change_began is not None:
            for change in step.meanwhile.changes:
                if isinstance(change, SetAdapter):
                    yield change, record, record.change_began


@states(LOAD, RELOAD, order=310)
def loads(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of all loads."""
    contents: dict[str, list[str]] = {}  # of each name, in order
    files: dict[str, str] = {}  # path -> content
    for load, record, at in steps_with_loads(timeline):
        running = timeline.running(at) if isinstance(timeline.history.workload.steps[record.step], Burst) else []
        same = any(o.partition.name == load.name for o in running)
        yield "load", ROUTES[load.route], "same" if same else "others" if running else "idle"
        past = contents.setdefault(load.name, [])
        if past and load.route is not Route.LOAD and past[-1] != load.content:
            back = load.content in past
            rewritten = files.get(load.path, load.content) != load.content
            yield "reload", ROUTES[load.route], "same" if rewritten else "other"
            if back:
                yield "reload", ROUTES[load.route], "back"
        past.append(load.content)
        files[load.path] = load.content
