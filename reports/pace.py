"""What takes longer than before. Times are noisy: only large factors over many requests are told, none as a failure.

Seconds per request count the drawing of examples alone, not the confirming of what was found, which is other work.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import msgspec

from reports.schema import CellResult, Results
from reports.text import duration, number

# Two runs of one build on one machine draw other workloads and share its processors with whatever else runs: they
# differ by a third and more. Half as much again is a question worth asking.
FACTOR = 1.5
REQUESTS = 200  # in both runs: a few dozen are one or two workloads, and their lengths are drawn
STARTS = 3  # in both runs: the first start reads the files from the disk, a second may share its work
START_SECONDS = 1.0  # added to a start: what starts in less, in process, is measured by the machine's mood


class Slower(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that takes longer, with both figures in words and how many were counted."""

    what: str
    before: str
    now: str
    factor: float
    counted: str


def slower(old: Results, new: Results) -> list[Slower]:
    """The whole run first, then requirement by requirement and cell by cell, the greatest factor first."""
    cells = sorted(_cells(old, new), key=lambda one: (-one.factor, one.what))
    return [*_requests(old, new), *_starts(old, new), *cells]


def _requests(old: Results, new: Results) -> Iterator[Slower]:
    counts = old.totals.get("requests", 0), new.totals.get("requests", 0)
    before, now = old.timing.requests_per_minute, new.timing.requests_per_minute
    if before and now and min(counts) >= REQUESTS and before / now >= FACTOR:
        yield Slower(
            what="requests a minute, whole run",
            before=number(before),
            now=number(now),
            factor=before / now,
            counted=_counted(*counts, "requests"),
        )


def _starts(old: Results, new: Results) -> Iterator[Slower]:
    counts = len(old.timing.engine_start), len(new.timing.engine_start)
    if min(counts) < STARTS:
        return
    before, now = statistics.median(old.timing.engine_start), statistics.median(new.timing.engine_start)
    if before > 0 and now / before >= FACTOR and now - before >= START_SECONDS:
        yield Slower(
            what="engine start, median",
            before=duration(before),
            now=duration(now),
            factor=now / before,
            counted=_counted(*counts, "starts"),
        )


def _cells(old: Results, new: Results) -> Iterator[Slower]:
    earlier = {place: cell for place, cell in _by_place(old) if cell.requests >= REQUESTS and cell.drawn > 0}
    for place, cell in _by_place(new):
        past = earlier.get(place)
        if past is None or cell.requests < REQUESTS:
            continue
        before, now = past.drawn / past.requests, cell.drawn / cell.requests
        if now / before >= FACTOR:
            yield Slower(
                what=f"a request of {place[0]} in {place[1]}",
                before=duration(before),
                now=duration(now),
                factor=now / before,
                counted=_counted(past.requests, cell.requests, "requests"),
            )


def _by_place(results: Results) -> Iterator[tuple[tuple[str, str], CellResult]]:
    for requirement in results.requirements:
        for cell in requirement.cells:
            yield (requirement.id, cell.cell), cell


def _counted(before: int, now: int, what: str) -> str:
    return f"{number(before)} and {number(now)} {what}"
