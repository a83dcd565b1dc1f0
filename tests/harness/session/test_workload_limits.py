"""The size of workloads follows from the cost of a request and the budget. A fast engine gets full-size workloads."""

from __future__ import annotations

import pytest
from support.drawn_workloads import limits

from coldproof.harness.session.workload_limits import SLOW_SECONDS, SMALLEST_SCALE, scale_note, workload_scale


@pytest.mark.parametrize("trial_seconds", [0.01, 3.8, 3600])
@pytest.mark.parametrize("answer", [None, 0.0, 0.05, SLOW_SECONDS - 0.01])
def test_a_fast_engine_gets_workloads_of_the_usual_size(answer: float | None, trial_seconds: float) -> None:
    """This holds for any budget, also if a stored calibration has no latency."""
    assert workload_scale(answer, trial_seconds) == 1.0


@pytest.mark.parametrize(
    ("answer", "trial_seconds", "scale"),
    [(1.0, 3.8, 0.03), (1.0, 60, 0.5), (2.0, 60, 0.25), (0.5, 60, 1.0), (1.0, 3600, 1.0), (10.0, 0.5, SMALLEST_SCALE)],
)
def test_a_slow_model_gets_larger_workloads_with_a_larger_budget(
    answer: float, trial_seconds: float, scale: float
) -> None:
    """Twice the time per answer gives half the size."""
    assert workload_scale(answer, trial_seconds) == pytest.approx(scale)


def test_the_report_says_what_was_reduced() -> None:
    """The note is empty if nothing was reduced."""
    said = scale_note(limits(scale=0.03), 1.04, 3.8)
    assert "takes 1 s, and a trial has 3.8 s" in said
    assert "at 3% of their usual size: first segments of at most 2 blocks in place of 8" in said
    assert scale_note(limits(), 0.01, 3.8) == ""
