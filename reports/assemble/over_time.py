"""What changes in the course of a run: coverage, losses of engines, and the memory and open files of each process.

Invariant: the last point of progress has the sums over all examples, even if earlier points were dropped.

Growth: the first quarter of a process's life is ignored, because caches fill and pools are created then. The median
over the second quarter is compared with the median over the last quarter. Short bursts and pauses do not change these.
"""

from __future__ import annotations

import statistics
from typing import Any

import msgspec

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import DroppedKind, EngineLoss, Growth, ProgressPoint, UsagePoint
from coldproof.reports.format.text import duration, number

PROGRESS_POINTS, USAGE_POINTS = 100, 120  # the most points of a chart
MIN_SAMPLES, MIN_SECONDS = 24, 300.0  # below these, growth of a process is not evaluated
MIN_GROWTH_SHARE, MIN_GROWTH_BYTES = 0.02, 16 * 2**20  # memory growth below the larger of these is ignored
MIN_FILES_GROWTH = 4  # connections open and close all the time


class EvidenceSample(msgspec.Struct, frozen=True):
    """The few counters of an example's evidence that are drawn over time, by the names that evidence has."""

    hit_tokens: float = msgspec.field(default=0.0, name=ReportedEvidence.HIT_TOKENS.value)
    evicted: float = msgspec.field(default=0.0, name=ReportedEvidence.EVICTED.value)
    preemptions: float = msgspec.field(default=0.0, name=ReportedEvidence.PREEMPTIONS.value)
    discriminating: float = msgspec.field(default=0.0, name=ReportedEvidence.DISCRIMINATING.value)


def progress(events: list[dict[str, Any]], began: float) -> list[ProgressPoint]:
    """Return the sums after each example. In each of PROGRESS_POINTS time slices only the last point is kept."""
    point = ProgressPoint(at=0.0)
    points: list[ProgressPoint] = []
    for event in events:
        if event["event"] == "example":
            point = _after(point, event, began)
            points.append(point)
    width = (points[-1].at / PROGRESS_POINTS if points else 0.0) or 1.0
    slices = {min(int(point.at / width), PROGRESS_POINTS - 1): point for point in points}
    return list(slices.values())


def _after(point: ProgressPoint, event: dict[str, Any], began: float) -> ProgressPoint:
    seen = msgspec.convert(event["evidence"], EvidenceSample)
    return ProgressPoint(
        at=max(point.at, round(event["at"] - began, 1)),  # clocks of several workers may differ a little
        examples=point.examples + 1,
        requests=point.requests + event["requests"],
        hit_tokens=point.hit_tokens + seen.hit_tokens,
        evicted_tokens=point.evicted_tokens + seen.evicted,
        preemptions=point.preemptions + seen.preemptions,
        discriminating=point.discriminating + seen.discriminating,
        failing=point.failing + event["failed"],
    )


def losses(events: list[dict[str, Any]], began: float) -> list[EngineLoss]:
    """Return each loss of an engine, with its time and cell."""
    return [
        EngineLoss(at=round(event["at"] - began, 1), cell=event["cell"])
        for event in events
        if event["event"] == "engine_lost"
    ]


def dropped_kinds(events: list[dict[str, Any]], began: float) -> list[DroppedKind]:
    """Return the kinds of requests that each layer stopped sending, with the requirements that this narrows.

    A confirmed crash replaces what the calibration saw of the same kind, but the time stays.
    """
    found: dict[tuple[str, str], DroppedKind] = {}
    for event in events:
        if event["event"] == "kind_dropped":
            dropped, layer = event["dropped"], event.get("layer", "")
            key = (layer, dropped["kind"])
            at = found[key].at if key in found else round(event["at"] - began, 1)
            fields = {name: dropped.get(name) or "" for name in ("kind", "cell", "requirement", "case", "why")}
            found[key] = DroppedKind(at=at, layer=layer, narrows=narrowed_by(events, *key), **fields)
    return list(found.values())


def narrowed_by(events: list[dict[str, Any]], layer: str, kind: str) -> list[str]:
    """Return the ids of the requirements with tests that did not send a kind of request."""
    verdicts = (event for event in events if event["event"] == "verdict" and event.get("layer", "") == layer)
    return sorted({event["requirement"] for event in verdicts if kind in event["narrowed"]})


def growths(events: list[dict[str, Any]], began: float) -> list[Growth]:
    """Return the growth of each resource of each process; nothing if the run was not sampled.

    Engines with few samples, such as those that confirm a counterexample, are left out.
    """
    points: dict[str, list[tuple[float, dict[str, int]]]] = {}
    for event in events:
        for usage in event["usages"] if event["event"] == "usage" else ():
            points.setdefault(usage["process"], []).append((round(event["at"] - began, 1), usage))
    requests = [(round(event["at"] - began, 1), event["requests"]) for event in events if event["event"] == "example"]
    return [
        growth(process, what, [UsagePoint(at=at, value=usage[what]) for at, usage in samples], requests)
        for process, samples in points.items()
        for what in ("memory", "files")
        if len(samples) >= MIN_SAMPLES or process == next(iter(points))  # the first one is the run's own
    ]


def growth(process: str, what: str, points: list[UsagePoint], requests: list[tuple[float, int]]) -> Growth:
    """Return the growth of one resource of one process."""
    lived, quarter = points[-1].at - points[0].at, len(points) // 4
    if len(points) < MIN_SAMPLES or lived < MIN_SECONDS:
        early = late = statistics.median(point.value for point in points)
        return Growth(process=process, what=what, early=early, late=late, points=thin_out(points))
    before, after = points[quarter : 2 * quarter], points[-quarter:]
    early, late = (statistics.median(point.value for point in part) for part in (before, after))
    start, end = (statistics.median(point.at for point in part) for part in (before, after))
    between = sum(count for at, count in requests if start < at <= end)
    least = max(MIN_GROWTH_BYTES, MIN_GROWTH_SHARE * early) if what == "memory" else MIN_FILES_GROWTH
    return Growth(
        process=process,
        what=what,
        early=early,
        late=late,
        seconds=round(end - start, 1),
        requests=between,
        grows=late - early > least,
        points=thin_out(points),
    )


def thin_out(points: list[UsagePoint]) -> list[UsagePoint]:
    """Return at most USAGE_POINTS points, evenly spaced, including the last one."""
    step = -(-len(points) // USAGE_POINTS)
    return points[::-1][::step][::-1]


def growth_text(one: Growth) -> str:
    """Return the growth as text."""
    if one.grows is None:
        return f"{format_amount(one, one.late)}: sampled too briefly to determine growth"
    change = f"{format_amount(one, one.early)} to {format_amount(one, one.late)} in {duration(one.seconds)}"
    if not one.grows:
        return f"flat: {change}, {number(one.requests)} requests"
    if not one.requests:
        return f"GROWS: {change}"
    each = format_amount(one, 1000 * (one.late - one.early) / one.requests)
    return f"GROWS: {change}, {each} for 1,000 requests"


def format_amount(one: Growth, value: float) -> str:
    """Return a value with its unit."""
    return f"{number(round(value / 2**20, 1))} MiB" if one.what == "memory" else f"{number(value)} open files"
