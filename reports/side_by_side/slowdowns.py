"""Finds what takes longer than before. Times are noisy: only large factors over many requests are reported, never as a
failure.

Seconds per request include only the time of drawing examples, not the time of confirming failures.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldproof.reports.format.text import duration, number
from coldproof.reports.schema.results import CellResult, Results
from coldproof.reports.side_by_side.columns import Column

# Two runs of one build on one machine draw different workloads and share the processors with other programs. Their
# times differ by a third and more, so that only a larger factor is worth reporting.
FACTOR = 1.5
MIN_REQUESTS = 200  # in both runs; a few dozen requests are one or two workloads of random lengths
MIN_STARTS = 3  # in both runs; the first start reads the files from disk
MIN_START_DIFFERENCE = 1.0  # added to a start: what starts in less, in process, is measured by the machine's mood


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """One thing that takes longer, with both values as text and how many requests or starts they come from.

    `runs`: the labels of both.
    """

    runs: tuple[str, str]
    what: str
    before: str
    now: str
    factor: float
    counted: str


def slowdowns(columns: Sequence[Column]) -> list[Slowdown]:
    """Return the slowdowns from each run to the next: of the whole run, then of requirements and cells by factor."""
    return [one for before, now in itertools.pairwise(columns) for one in _between(before, now)]


def _between(before: Column, now: Column) -> Iterator[Slowdown]:
    old, new = before.results, now.results
    cells = sorted(_cells(old, new), key=lambda one: (-one.factor, one.what))
    for one in (*_requests(old, new), *_starts(old, new), *cells):
        yield dataclasses.replace(one, runs=(before.label, now.label))


def _requests(old: Results, new: Results) -> Iterator[Slowdown]:
    counts = old.totals.get("requests", 0), new.totals.get("requests", 0)
    before, now = old.timing.requests_per_minute, new.timing.requests_per_minute
    if before and now and min(counts) >= MIN_REQUESTS and before / now >= FACTOR:
        yield _slowdown("requests per minute, whole run", number(before), number(now), before / now, counts)


def _starts(old: Results, new: Results) -> Iterator[Slowdown]:
    counts = len(old.timing.engine_start), len(new.timing.engine_start)
    if min(counts) < MIN_STARTS:
        return
    before, now = statistics.median(old.timing.engine_start), statistics.median(new.timing.engine_start)
    if before > 0 and now / before >= FACTOR and now - before >= MIN_START_DIFFERENCE:
        yield _slowdown("engine start, median", duration(before), duration(now), now / before, counts, "starts")


def _cells(old: Results, new: Results) -> Iterator[Slowdown]:
    earlier = {place: cell for place, cell in _by_place(old) if cell.requests >= MIN_REQUESTS and cell.drawn > 0}
    for place, cell in _by_place(new):
        past = earlier.get(place)
        if past is None or cell.requests < MIN_REQUESTS:
            continue
        before, now = past.drawn / past.requests, cell.drawn / cell.requests
        if now / before >= FACTOR:
            what, counts = f"one request of {place[0]} in {place[1]}", (past.requests, cell.requests)
            yield _slowdown(what, duration(before), duration(now), now / before, counts)


def _slowdown(
    what: str, before: str, now: str, factor: float, counts: tuple[int, int], unit: str = "requests"
) -> Slowdown:
    counted = f"{number(counts[0])} and {number(counts[1])} {unit}"
    return Slowdown(runs=("", ""), what=what, before=before, now=now, factor=factor, counted=counted)


def _by_place(results: Results) -> Iterator[tuple[tuple[str, str], CellResult]]:
    for requirement in results.requirements:
        for cell in requirement.cells:
            yield (requirement.id, cell.cell), cell
