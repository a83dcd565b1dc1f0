"""Finds what takes longer than before. Times are noisy: only large factors over many requests are reported, never as a
failure.

Seconds per request include only the time of drawing examples, not the time of confirming failures.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldproof.harness.schema.results import Results
from coldproof.reports.format.text import duration, number
from coldproof.reports.side_by_side.columns import Column

# Two runs of one build on one machine draw different workloads and share the processors with other programs. Their
# times differ by a third and more, so that only a larger factor is worth reporting.
FACTOR = 1.5
MIN_REQUESTS = 200  # in both runs; a few dozen requests are one or two workloads of random lengths
MIN_STARTS = 3  # in both runs; the first start reads the files from disk
MIN_START_DIFFERENCE = 1.0  # added to a start: what starts in less, in process, is measured by the machine's mood
START, WHOLE = "engine start, median", "one request, whole run"


@dataclass(frozen=True, slots=True)
class Slowdown:
    """One thing that takes longer: the labels of both runs, both times as text, and from how much they are measured."""

    runs: tuple[str, str]
    what: str
    before: str
    now: str
    factor: float
    counted: str


def slowdowns(columns: Sequence[Column]) -> list[Slowdown]:
    """Return the slowdowns from each run to the next: of the whole run and of starts, then by falling factor."""
    return [one for pair in itertools.pairwise(columns) for one in sorted(_between(*pair), key=_order)]


def _order(one: Slowdown) -> tuple[bool, float, str]:
    return one.what not in (WHOLE, START), -one.factor, one.what


def _between(old: Column, new: Column) -> Iterator[Slowdown]:
    """Yield what both runs measured often enough, and the later one found slower."""
    earlier = dict(_times(old.results))
    for what, (now, later) in _times(new.results):
        before, sooner = earlier.get(what, (0.0, 0))
        starts = what == START
        few = min(sooner, later) < (MIN_STARTS if starts else MIN_REQUESTS)
        if few or not before or now / before < FACTOR or (starts and now - before < MIN_START_DIFFERENCE):
            continue
        counted = f"{number(sooner)} and {number(later)} {'starts' if starts else 'requests'}"
        yield Slowdown((old.label, new.label), what, duration(before), duration(now), now / before, counted)


def _times(results: Results) -> Iterator[tuple[str, tuple[float, int]]]:
    """Yield what a run measured: the seconds of one, and how many."""
    rate, starts = results.timing.requests_per_minute, results.timing.engine_start
    if rate:
        yield WHOLE, (60 / rate, results.totals.get("requests", 0))
    if starts:
        yield START, (statistics.median(starts), len(starts))
    for requirement in results.requirements:
        for cell in requirement.cells:
            if cell.requests:
                yield f"one request of {requirement.id} in {cell.cell}", (cell.drawn / cell.requests, cell.requests)
