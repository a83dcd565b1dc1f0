"""Whether two runs and their times are comparable. Warnings are shown and fail nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support import report_samples as samples

from coldproof.reports.comparison.comparison import compare, exit_code
from coldproof.reports.comparison.slowdowns import FACTOR, MIN_REQUESTS, MIN_START_DIFFERENCE, MIN_STARTS, slowdowns
from coldproof.reports.schema.results import CellResult, InjectedFault, Results, SelfTestRow, Timing
from coldproof.reports.views.run_facts import LARGE_FACTOR, comparability_warnings


def of(*cells: CellResult, **changes: Any) -> Results:
    """Return a run of LORA-3 in these cells, and of GROUND-1."""
    requirements = [
        samples.requirement("GROUND-1", "alone and in a batch"),
        samples.requirement("LORA-3", "same path", *cells),
    ]
    return samples.results(requirements=requirements, **changes)


# May they be compared?

PLAIN = of(samples.cell())
assert PLAIN.engine is not None
assert PLAIN.calibration is not None
FAULT = InjectedFault(name="salts-are-cut", summary="s", stands_for="f", acted=True)
UNLIKE = {
    "engine: before “vLLM”, now “SGLang”": {"engine": msgspec.structs.replace(PLAIN.engine, name="SGLang")},
    "adapter: before “vllm”, now “endpoint”": {"engine": msgspec.structs.replace(PLAIN.engine, adapter="endpoint")},
    "worker: before “model”, now “not reached”": {"engine": None},
    "profile: before “ci”, now “smoke”": {"profile": "smoke"},
    "oracle: before “cold-engine”, now “same-engine”": {
        "calibration": msgspec.structs.replace(PLAIN.calibration, oracle="same-engine")
    },
    "rule: before “token-exact”, now “by margin”": {
        "calibration": msgspec.structs.replace(PLAIN.calibration, exact=False)
    },
    "injected fault: before “none”, now “salts-are-cut”": {"fault": FAULT},
    "Coldproof: before “0.1.0”, now “0.2.0”": {"coldproof_version": "0.2.0"},
    "now “machine x86_64, cpus 2, memory unknown”": {"environment": {"machine": "x86_64", "cpus": "2"}},
    "The later run is incomplete": {"complete": False},
    "The later run is invalid": {"selftest": [SelfTestRow(planted="x", caught=False, said="")]},
    "The later run started before the earlier one": {"started": "2026-02-28T12:00:00Z"},
    "Different requirements: only before LORA-3.": {"requirements": PLAIN.requirements[:1]},
}


@pytest.mark.parametrize("said", UNLIKE)
def test_differences_are_comparability_warnings(said: str) -> None:
    """The warning names both values."""
    assert said in " ".join(comparability_warnings(PLAIN, msgspec.structs.replace(PLAIN, **UNLIKE[said])))


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": msgspec.structs.replace(PLAIN.engine, version="0.33.0")},
        {"seed": "7"},
        {"started": "2026-03-02T12:00:00+02:00"},
        {"started": "yesterday"},
        {"started": "2026-02-01T12:00:00"},
        {"duration_s": 1.0},
        {"calibration": msgspec.structs.replace(PLAIN.calibration, rule="other words", noise_nats=0.1)},
    ],
)
def test_expected_differences_give_no_warning(changes: dict[str, Any]) -> None:
    """A new version is the purpose of a comparison, and an unreadable time gives no warning."""
    assert comparability_warnings(PLAIN, msgspec.structs.replace(PLAIN, **changes)) == []


def test_a_warning_changes_no_verdict() -> None:
    """The reader decides what a warning means."""
    new = msgspec.structs.replace(PLAIN, profile="smoke", complete=False)
    assert exit_code(compare(PLAIN, new)) == 0


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (60.0, 60.0 / LARGE_FACTOR, "Much smaller example budget"),
        (60.0, 60.0 / LARGE_FACTOR + 1, ""),
        (60.0, 60.0 * LARGE_FACTOR, "Much larger example budget"),
        (60.0, 0.0, ""),
        (0.0, 60.0, ""),
    ],
)
def test_a_very_different_budget_is_a_warning(before: float, now: float, said: str) -> None:
    """A run without a recorded budget gives no warning."""
    found = comparability_warnings(of(samples.cell(share=before)), of(samples.cell(share=now)))
    assert [doubt.startswith(said) for doubt in found] == [True] * bool(said)


# Slower


def timed(requests: int, drawn: float) -> Results:
    """Return a run with one timed cell of this many requests in this many seconds."""
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
    """Both runs need enough requests and a recorded time, and a faster run is not reported."""
    found = slowdowns(timed(*old), timed(*new))
    assert [round(one.factor, 2) for one in found] == ([factor] if factor else [])


def test_a_slowdown_has_its_number_of_requests() -> None:
    """A slowdown is no failure."""
    old, new = timed(1200, 12.0), timed(1150, 26.45)
    (one,) = slowdowns(old, new)
    assert one.what == "one request of LORA-3 in tiny-llama"
    assert one.counted == "1\u202f200 and 1\u202f150 requests"
    assert exit_code(compare(old, new)) == 0


def whole(requests: int = 10_000, **figures: Any) -> Results:
    """Return a run that has only figures of the whole run."""
    return of(samples.cell(), timing=Timing(**figures), totals={"requests": requests})


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (whole(requests_per_minute=900.0), whole(requests_per_minute=600.0), ["requests per minute, whole run"]),
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
    """Engine starts are compared by their median, and not below a minimum time."""
    assert [one.what for one in slowdowns(old, new)] == what
