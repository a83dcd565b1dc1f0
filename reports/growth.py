"""Whether a long run kept what it was given: memory and open files of harness and engines, early against late.

The first quarter of a process's life is left out, for caches fill and pools are made then. What is compared is the
median over the second quarter with that over the last one, which neither a burst nor a pause moves.
"""

from __future__ import annotations

import statistics
from typing import Any

from reports.schema import Growth, UsagePoint
from reports.text import duration, number

FEWEST, SHORTEST = 24, 300.0  # looks, and seconds of a process's life, below which nothing is said about its growth
MEMORY_SHARE, MEMORY_LEAST = 0.02, 16 * 2**20  # growth below the larger of these two is flat
FILES_LEAST = 4  # connections come and go
MOST_POINTS = 120
KEPT = ("memory", "files")


def growths(events: list[dict[str, Any]], began: float) -> list[Growth]:
    """One for each process and each thing that it keeps, from the events of a run; empty where nobody looked.

    Engines that lived for a few looks only, such as those that a counterexample is confirmed on, are left out.
    """
    points: dict[str, list[tuple[float, dict[str, int]]]] = {}
    for event in events:
        for usage in event["usages"] if event["event"] == "usage" else ():
            points.setdefault(usage["process"], []).append((round(event["at"] - began, 1), usage))
    requests = [(round(event["at"] - began, 1), event["requests"]) for event in events if event["event"] == "example"]
    return [
        growth(process, what, [UsagePoint(at=at, value=usage[what]) for at, usage in looks], requests)
        for process, looks in points.items()
        for what in KEPT
        if len(looks) >= FEWEST or process == next(iter(points))  # the first one is the run's own
    ]


def growth(process: str, what: str, points: list[UsagePoint], requests: list[tuple[float, int]]) -> Growth:
    """Early against late."""
    lived = points[-1].at - points[0].at
    quarter = len(points) // 4
    if len(points) < FEWEST or lived < SHORTEST:
        early = late = statistics.median(point.value for point in points)
        return Growth(process=process, what=what, early=early, late=late, points=thinned(points))
    before, after = points[quarter : 2 * quarter], points[-quarter:]
    early, late = (statistics.median(point.value for point in part) for part in (before, after))
    start, end = (statistics.median(point.at for point in part) for part in (before, after))
    between = sum(count for at, count in requests if start < at <= end)
    least = max(MEMORY_LEAST, MEMORY_SHARE * early) if what == "memory" else FILES_LEAST
    return Growth(
        process=process,
        what=what,
        early=early,
        late=late,
        seconds=round(end - start, 1),
        requests=between,
        grows=late - early > least,
        points=thinned(points),
    )


def thinned(points: list[UsagePoint]) -> list[UsagePoint]:
    """At most so many of them, evenly, the last among them."""
    step = -(-len(points) // MOST_POINTS)
    return points[::-1][::step][::-1]


def in_words(one: Growth) -> str:
    """What is said of one of them."""
    if one.grows is None:
        return f"{amount(one, one.late)}: watched too shortly to tell whether it grows"
    change = f"{amount(one, one.early)} to {amount(one, one.late)} in {duration(one.seconds)}"
    if not one.grows:
        return f"flat: {change}, {number(one.requests)} requests"
    each = f", {amount(one, 1000 * (one.late - one.early) / one.requests)} for 1,000 requests" if one.requests else ""
    return f"GROWS: {change}{each}"


def amount(one: Growth, value: float) -> str:
    """A value with its unit."""
    return f"{number(round(value / 2**20, 1))} MiB" if one.what == "memory" else f"{number(value)} open files"
