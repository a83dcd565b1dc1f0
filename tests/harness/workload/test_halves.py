"""A workload that runs twice has the same steps in both halves, and is made smaller in both of them alike."""

from __future__ import annotations

import msgspec
import pytest
from support.histories import ask, burst, put

from coldproof.harness.proof.diagnose.controls import controls_of
from coldproof.harness.proof.minimise.descent import of_both_halves
from coldproof.harness.proof.minimise.reduce import smaller
from coldproof.harness.workload.halves import BETWEEN, count_of, half_of, twice
from coldproof.harness.workload.steps import Restart, Workload
from coldproof.harness.workload.validity import is_valid

ONCE = Workload(
    (put("A"), burst(ask(adapter="tenant")), burst(ask(("turn", 9), continues=0, adapter="tenant"), ask(("x", 50))))
)


def test_the_second_half_continues_its_own_requests() -> None:
    """A turn continues the conversation of its half, and adapters are loaded again: the next engine has none."""
    both = twice(ONCE)
    assert is_valid(both)
    assert both.steps[:3] == ONCE.steps
    assert both.steps[3] == BETWEEN
    assert [request.prompt.continues for _, _, request in both.requests()] == [None, 0, None, None, 3, None]
    assert half_of(both) == ONCE
    assert count_of(both) == 2 * count_of(ONCE) == 6


@pytest.mark.parametrize(
    "other",
    [
        ONCE,
        Workload((*ONCE.steps, Restart(), *ONCE.steps)),
        Workload((*ONCE.steps, BETWEEN, ONCE.steps[0], ONCE.steps[1])),
        twice(twice(ONCE)),
    ],
)
def test_other_workloads_have_no_halves(other: Workload) -> None:
    """One that is restarted as it was, one whose halves differ, and one with more than two."""
    assert half_of(other) is None


def test_smaller_variants_run_twice_as_well() -> None:
    """The failing request is one of the second half. A variant of one half alone would compare nothing."""
    variants = list(of_both_halves(smaller)(twice(ONCE), 4))
    halves = [half_of(variant) for variant in variants]
    assert halves
    assert None not in halves
    assert halves == list(smaller(ONCE, 1))
    assert list(of_both_halves(smaller)(ONCE, 1)) == halves


def test_controls_change_both_halves() -> None:
    """Otherwise each of them would compare nothing, and the failure would seem to need what it removes."""
    made = list(controls_of(twice(ONCE), 4, salts=True))
    assert made
    for control in made:
        half = half_of(control.workload)
        assert half is not None, control.name
        assert control.request is not None
        assert count_of(half) <= control.request < 2 * count_of(half)
    alone = {control.name: control for control in made}["a fresh salt on the failing request"]
    salts = [request.salt for _, _, request in alone.workload.requests()]
    assert salts == [None, "control", None] * 2


def test_halves_are_stored_as_other_workloads() -> None:
    """A case file names the restart by its tag."""
    stored = msgspec.json.encode(twice(ONCE))
    assert half_of(msgspec.json.decode(stored, type=Workload)) == ONCE
