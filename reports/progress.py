"""What a run had seen by when: sums over its examples, at no more moments than a picture has room for.

Invariant: the last point holds the sums over all examples, whatever was thinned out before it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from reports.schema import EngineLoss, ProgressPoint

MOST_POINTS = 100


class Seen(msgspec.Struct, frozen=True):
    """The few counters of an example's evidence that are drawn over time, by the names that evidence has."""

    hit_tokens: float = msgspec.field(default=0.0, name="hit tokens")
    evicted: float = msgspec.field(default=0.0, name="prompt tokens that had been computed and were gone")
    preemptions: float = msgspec.field(default=0.0, name="preemptions")
    telling: float = msgspec.field(
        default=0.0, name="of these, with a cold answer that differs from the other identity's"
    )


def progress(events: list[dict[str, Any]], began: float) -> list[ProgressPoint]:
    """Sums so far after each example; of those that fall into one slice of the time only the last is kept."""
    point = ProgressPoint(at=0.0)
    points: list[ProgressPoint] = []
    for event in events:
        if event["event"] == "example":
            point = _after(point, event, began)
            points.append(point)
    width = (points[-1].at / MOST_POINTS if points else 0.0) or 1.0
    slices = {min(int(point.at / width), MOST_POINTS - 1): point for point in points}
    return list(slices.values())


def _after(point: ProgressPoint, event: dict[str, Any], began: float) -> ProgressPoint:
    seen = msgspec.convert(event.get("evidence", {}), Seen)
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
    """Each time that an engine was lost, and in which cell."""
    return [
        EngineLoss(at=round(event["at"] - began, 1), cell=event["cell"])
        for event in events
        if event["event"] == "engine_lost"
    ]
