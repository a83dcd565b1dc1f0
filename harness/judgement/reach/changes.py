"""Reached states of what is done to an engine: aborts, resets, loads, updates, pauses, loads from a second tier."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.history.records import Outcome, ResetRecord, StepRecord
from coldproof.harness.judgement.reach.lookups import Cell
from coldproof.harness.judgement.reach.timeline import Phase, Timeline
from coldproof.harness.workload.steps import Burst, Reset, Restart, Route, SetAdapter, Step

ROUTES = {
    Route.LOAD: "load",
    Route.IN_PLACE: "in-place",
    Route.UNLOAD_LOAD: "unload-load",
    Route.SWITCH: "switch",
}
UPDATE_ROUTES = {WeightRoute.PATH: "path", WeightRoute.SAME_PATH: "same-path", WeightRoute.IN_PLACE: "in-place"}
PAUSES = {PauseMode.KEEP: "keep", PauseMode.ABORT: "abort", PauseMode.WAIT: "wait"}


def changes(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of everything that is done to the engine besides requests."""
    for outcome in timeline.history.outcomes:
        yield from abort(timeline, outcome)
    for reset in timeline.history.resets:
        yield from reset_cells(timeline, reset)
    yield from loads(timeline)
    yield from updates(timeline)
    yield from tier(timeline)


def abort(timeline: Timeline, outcome: Outcome) -> Iterator[Cell]:
    """Yield the cell of one aborted request."""
    if outcome.aborted is None or timeline.history.engine_steps is None:
        return
    later = [
        start
        for start in timeline.starts
        if start.at >= outcome.finished and not start.resumed and timeline.share_block(outcome, start.outcome)
    ]
    after = "never" if not later else "hit" if any(start.hit for start in later) else "none"
    yield "abort", moment(timeline, outcome), after


def moment(timeline: Timeline, outcome: Outcome) -> str:
    """Return how far an aborted request was: a row of the model."""
    match timeline.before_end(outcome):
        case Phase.QUEUED:
            return "new"
        case Phase.PREEMPTED:
            return "preempted"
        case Phase.PREFILL:
            return "first-chunk" if len(timeline.chunks[outcome.request]) <= 1 else "later-chunk"
    tokens = len(outcome.tokens)
    return "last" if tokens == outcome.max_tokens - 1 else "first" if tokens == 1 else "middle"


def reset_cells(timeline: Timeline, reset: ResetRecord) -> Iterator[Cell]:
    """Yield the cell of one reset."""
    phases = {timeline.phase(o, reset.began) for o in timeline.history.outcomes}
    waits = phases & {Phase.QUEUED, Phase.PREEMPTED}
    beside = (
        "decode" if Phase.DECODE in phases else "prefill" if Phase.PREFILL in phases else "queued" if waits else "idle"
    )
    busy = beside in ("prefill", "decode")
    if not reset.success:
        yield "reset", beside, "refused"
        return
    if ResetScope.SECOND_TIER in reset.scope:
        yield "reset", beside, "tier"
    yield "reset", beside, "running" if busy and ResetScope.RUNNING in reset.scope else "done"


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


def loads(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of all loads."""
    contents: dict[str, list[str]] = {}  # of each name, in order
    files: dict[str, str] = {}  # path -> content
    for load, record, at in steps_with_loads(timeline):
        running = timeline.running(at) if isinstance(timeline.history.workload.steps[record.step], Burst) else []
        same = any(o.residence.name == load.name for o in running)
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


def updates(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of updates of the weights and of pauses."""
    history = timeline.history
    for update in history.updates:
        if update.error is None:
            paused = any(pause.contains(update.began) for pause in history.pauses)
            running = bool(timeline.running(update.began))
            yield (
                "update",
                UPDATE_ROUTES[update.route],
                "paused" if paused and running else "running" if running else "idle",
            )
    for pause in history.pauses:
        if pause.error is None and pause.level is None:
            yield "pause", PAUSES[pause.mode], "cleared" if pause.clear else "kept"


def tier(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of loads from a second tier, by what emptied the pool before."""
    emptied = "eviction"
    for record in timeline.history.steps:
        step = timeline.history.workload.steps[record.step]
        if isinstance(step, Restart) or (isinstance(step, Reset) and step.prefix):
            emptied = "reset" if isinstance(step, Reset) else "restart"
        if not isinstance(step, Burst):
            continue
        grown = record.after.since(record.before)
        counts = {"load": grown.external_hit_tokens, "resumed": grown.resumed_hit_tokens, "failed": grown.failed_loads}
        for kind, count in counts.items():
            if count:
                yield "tier", kind, emptied
        emptied = "eviction"
