"""Reached states of what is done to an engine: aborts and resets. Features have those of other changes."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.history.records import Outcome, ResetRecord
from coldproof.harness.judgement.reach.model import CHANGES
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import Phase, Timeline


@states(*CHANGES, order=300)
def changes(timeline: Timeline) -> Iterator[Cell]:
    """Yield the cells of everything that is done to the engine besides requests."""
    for outcome in timeline.history.outcomes:
        yield from abort(timeline, outcome)
    for reset in timeline.history.resets:
        yield from reset_cells(timeline, reset)


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
