"""How long a counterexample is minimised, and what minimising must leave in it."""

from __future__ import annotations

import math

import pytest
from support.histories import ask, burst, put

from coldproof.harness.judgement.evidence.cache import Control
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.options import PROFILES
from coldproof.harness.proof.limits import FAMILIAR_SECONDS, WAIVABLE_SECONDS, ProofLimits
from coldproof.harness.proof.pipeline import cuts
from coldproof.harness.workload.steps import Reset, Workload


@pytest.mark.parametrize(
    ("waivable", "familiar", "whole", "seconds"),
    [
        (False, False, 180, 180),
        (True, False, 180, WAIVABLE_SECONDS),
        (True, False, 2, 2),
        (False, True, 180, FAMILIAR_SECONDS),
        (True, True, 180, FAMILIAR_SECONDS),
    ],
)
def test_what_may_be_known_is_minimised_for_a_short_time(
    *, waivable: bool, familiar: bool, whole: float, seconds: float
) -> None:
    """A failure that may be known needs only its signature. A shorter limit stays in force."""
    limits = ProofLimits(minimise_seconds=whole, controls_seconds=0, replays=1)
    assert limits.minimising(waivable=waivable, familiar=familiar) == seconds


def test_an_engine_in_process_needs_less_for_a_familiar_counterexample() -> None:
    """A workload takes milliseconds there, and a fault that breaks many requirements would double the run."""
    quick, slow = (ProofLimits.of(PROFILES["smoke"], quick=quick) for quick in (True, False))
    assert quick.minimising(waivable=False, familiar=True) < slow.minimising(waivable=False, familiar=True)
    assert quick.minimising(waivable=False, familiar=False) == slow.minimising(waivable=False, familiar=False)


def test_a_hurried_proof_is_shorter_in_every_respect() -> None:
    """The short limits hold on fresh engines too, whatever else is known. A limit that is already shorter stays."""
    limits = ProofLimits(minimise_seconds=180, controls_seconds=0, replays=10).hurried()
    assert limits.minimise_seconds == limits.minimising(waivable=False, familiar=False) == FAMILIAR_SECONDS
    assert limits.replays == 1
    assert ProofLimits(minimise_seconds=1, controls_seconds=0, replays=1).hurried().minimise_seconds == 1


@pytest.mark.parametrize(
    ("requirement", "kept"),
    [
        (Requirement("CTRL-1", "resets", (), (Control.RESETS,)), Reset),
        (Requirement("REUSE-1", "reuse", (), (Requests.HITS,)), None),
    ],
)
def test_a_counterexample_keeps_what_its_requirement_is_about(requirement: Requirement, kept: type | None) -> None:
    """A requirement about resets keeps the reset: without it another fault may fail instead."""
    workload = Workload((put("A"), burst(ask()), Reset(), burst(ask())))
    smaller = list(cuts(requirement, workload, None))
    assert smaller
    assert all(any(isinstance(step, Reset) for step in one.steps) for one in smaller) is (kept is Reset)


def test_the_time_that_is_left_limits_a_proof() -> None:
    """At the end of the time nothing is minimised and no control runs. One replay remains, as a violation needs one."""
    whole = ProofLimits(minimise_seconds=180, controls_seconds=100, replays=10)
    assert whole.within(math.inf) == whole
    assert whole.within(40).minimise_seconds == whole.within(40).controls_seconds == 10
    assert [whole.within(40).replays_of(seconds) for seconds in (0.0, 0.1, 2.5, 60.0)] == [10, 10, 4, 1]
    over = whole.within(0)
    assert over.minimising(waivable=False, familiar=False) == over.minimising(waivable=True, familiar=True) == 0
    assert (over.controls_seconds, over.replays_of(1.0)) == (0, 1)


def test_with_a_slow_model_a_proof_leaves_time_for_later_requirements() -> None:
    """A proof takes about a tenth of the remaining time, and its usual limits if there is much time."""
    whole = ProofLimits(minimise_seconds=15, controls_seconds=90, replays=3)
    left = whole.within(320, slow=True)
    assert left.minimise_seconds == left.controls_seconds == left.replay_seconds == 10
    assert left.replays_of(4.0) == 2
    assert whole.within(7200, slow=True).minimise_seconds == 15
