"""Coverage over time: sums over the run's examples, at a limited number of points for a chart.

Invariant: the last point has the sums over all examples, even if earlier points were dropped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from coldproof.reports.schema.evidence import ReportedEvidence
from coldproof.reports.schema.results import EngineLoss, ProgressPoint

MAX_POINTS = 100


class EvidenceSample(msgspec.Struct, frozen=True):
    """The few counters of an example's evidence that are drawn over time, by the names that evidence has."""

    hit_tokens: float = msgspec.field(default=0.0, name=ReportedEvidence.HIT_TOKENS.value)
    evicted: float = msgspec.field(default=0.0, name=ReportedEvidence.EVICTED.value)
    preemptions: float = msgspec.field(default=0.0, name=ReportedEvidence.PREEMPTIONS.value)
    telling: float = msgspec.field(default=0.0, name=ReportedEvidence.TELLING.value)


def progress(events: list[dict[str, Any]], began: float) -> list[ProgressPoint]:
    """Return the sums after each example. In each of MAX_POINTS time slices only the last point is kept."""
    point = ProgressPoint(at=0.0)
    points: list[ProgressPoint] = []
    for event in events:
        if event["event"] == "example":
            point = _after(point, event, began)
            points.append(point)
    width = (points[-1].at / MAX_POINTS if points else 0.0) or 1.0
    slices = {min(int(point.at / width), MAX_POINTS - 1): point for point in points}
    return list(slices.values())


def _after(point: ProgressPoint, event: dict[str, Any], began: float) -> ProgressPoint:
    seen = msgspec.convert(event.get("evidence", {}), EvidenceSample)
    return ProgressPoint(
        at=max(point.at, round(event["at"] - began, 1)),  # clocks of several workers may differ a little
        examples=point.examples + 1,
        requests=point.requests + event["requests"],
        hit_tokens=point.hit_tokens + seen.hit_tokens,
        evicted_tokens=point.evicted_tokens + seen.evicted,
        preemptions=point.preemptions + seen.preemptions,
        telling=point.telling + seen.telling,
        failing=point.failing + event.get("failed", False),
    )


def losses(events: list[dict[str, Any]], began: float) -> list[EngineLoss]:
    """Return each loss of an engine, with its time and cell."""
    return [
        EngineLoss(at=round(event["at"] - began, 1), cell=event["cell"])
        for event in events
        if event["event"] == "engine_lost"
    ]
