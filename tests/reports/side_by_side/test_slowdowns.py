"""What takes longer than before: told where it is large and over many requests, and never a failure."""

from __future__ import annotations

from typing import Any

import pytest
from support import report_samples as samples
from support.side_by_side_samples import two

from coldproof.harness.schema.results import CellResult, Results, Timing
from coldproof.reports.side_by_side.changes import changes, exit_code
from coldproof.reports.side_by_side.slowdowns import FACTOR, MIN_REQUESTS, MIN_START_DIFFERENCE, MIN_STARTS, slowdowns


def of(*cells: CellResult, **changes: Any) -> Results:
    """A run of LORA-3 in these cells, beside GROUND-1."""
    asked = [
        samples.requirement("GROUND-1", "alone and in a batch"),
        samples.requirement("LORA-3", "same path", *cells),
    ]
    return samples.results(requirements=asked, **changes)


def timed(requests: int, drawn: float) -> Results:
    """A run whose one timed cell had so many requests in so many seconds of drawing."""
    return of(samples.cell(requests=requests, drawn=drawn), timing=Timing())


@pytest.mark.parametrize(
    ("old", "new", "factor"),
    [
        ((1200, 12.0), (1150, 26.45), 2.3),
        ((MIN_REQUESTS, 1.0), (MIN_REQUESTS, FACTOR), FACTOR),
        ((MIN_REQUESTS, 1.0), (MIN_REQUESTS, FACTOR - 0.01), None),
        ((MIN_REQUESTS - 1, 1.0), (MIN_REQUESTS, 9.0), None),
        ((MIN_REQUESTS, 1.0), (MIN_REQUESTS - 1, 9.0), None),
        ((MIN_REQUESTS, 0.0), (MIN_REQUESTS, 9.0), None),
        ((MIN_REQUESTS, 9.0), (MIN_REQUESTS, 1.0), None),
    ],
)
def test_a_cell_is_slower_by_a_large_factor_over_many_requests(
    old: tuple[int, float], new: tuple[int, float], factor: float | None
) -> None:
    """In both runs; a run that did not record the time says nothing, and faster is no news."""
    found = slowdowns(two(timed(*old), timed(*new)))
    assert [round(one.factor, 2) for one in found] == ([factor] if factor else [])


def test_slower_says_how_many_requests_it_is_from() -> None:
    """And is no failure."""
    old, new = timed(1200, 12.0), timed(1150, 26.45)
    (one,) = slowdowns(two(old, new))
    assert one.what == "one request of LORA-3 in tiny-llama"
    assert one.counted == "1\u202f200 and 1\u202f150 requests"
    assert exit_code(changes(two(old, new))) == 0


def whole(requests: int = 10_000, **figures: Any) -> Results:
    """A run of which only the figures of the whole are told."""
    return of(samples.cell(), timing=Timing(**figures), totals={"requests": requests})


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (whole(requests_per_minute=900.0), whole(requests_per_minute=600.0), ["one request, whole run"]),
        (whole(requests_per_minute=900.0), whole(requests_per_minute=601.0), []),
        (whole(requests_per_minute=900.0), whole(MIN_REQUESTS - 1, requests_per_minute=90.0), []),
        (whole(requests_per_minute=900.0), whole(), []),
        (whole(engine_start=[10.0] * MIN_STARTS), whole(engine_start=[15.0] * MIN_STARTS), ["engine start, median"]),
        (whole(engine_start=[10.0] * MIN_STARTS), whole(engine_start=[10.0] * MIN_STARTS + [99.0]), []),
        (whole(engine_start=[10.0] * MIN_STARTS), whole(engine_start=[15.0] * (MIN_STARTS - 1)), []),
        (whole(engine_start=[0.1] * MIN_STARTS), whole(engine_start=[MIN_START_DIFFERENCE] * MIN_STARTS), []),
        (whole(), whole(), []),
    ],
)
def test_the_whole_run_is_slower_by_its_own_limits(old: Results, new: Results, what: list[str]) -> None:
    """Starts by their median, and not where they take less than anybody waits for."""
    assert [one.what for one in slowdowns(two(old, new))] == what
