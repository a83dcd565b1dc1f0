"""Reached states of loads from a second tier."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.harness.judgement.reach.model import Family, Needs
from coldproof.harness.judgement.reach.states import Cell, states
from coldproof.harness.judgement.reach.timeline import Timeline
from coldproof.harness.workload.steps import Burst, Reset, Restart

TIER = Family(
    id="tier",
    title="Second tier",
    row_is="blocks",
    column_is="the pool lost them by",
    rows={"load": "are loaded", "resumed": "are loaded for a resumed request", "failed": "fail to load"},
    columns={"eviction": "eviction", "reset": "a reset", "restart": "a restart"},
    needs=Needs.TIER,
)


@states(TIER, order=330)
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
