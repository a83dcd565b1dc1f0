"""Reached states of updates of the weights and of pauses."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.judgement.reach.model import Family
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import Timeline

UPDATE_ROUTES = {
    WeightRoute.PATH: "path",
    WeightRoute.SAME_PATH: "same-path",
    WeightRoute.IN_PLACE: "in-place",
    WeightRoute.TRANSFER: "transfer",
}
PAUSES = {PauseMode.KEEP: "keep", PauseMode.ABORT: "abort", PauseMode.WAIT: "wait"}
UPDATE = Family(
    id="update",
    title="Update of the weights",
    row_is="route",
    column_is="requests",
    rows={"path": "another path", "same-path": "the same path", "in-place": "in place", "transfer": "transferred"},
    columns={"idle": "none", "paused": "are paused", "running": "run"},
)
PAUSE = Family(
    id="pause",
    title="Pause",
    row_is="requests are",
    column_is="the prefix cache",
    rows={"keep": "kept", "abort": "aborted", "wait": "awaited"},
    columns={"kept": "is kept", "cleared": "is cleared"},
)


@states(UPDATE, PAUSE, order=320)
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
