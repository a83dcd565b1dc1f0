"""A conclusion says no more than its controls show."""

from __future__ import annotations

from typing import Any

import pytest

from coldproof.adapters.spec.cell import CACHING, POOL, TIER
from coldproof.harness.proof.diagnose.conclusion import ControlFacts, conclude, runs_needed, strength_of
from coldproof.harness.proof.diagnose.controls import CONCURRENT, DISCONNECT, NAME, ONE_SIDE_FIRST, OTHER_REQUESTS, PATH
from coldproof.harness.schema.case import ControlRow, Strength
from coldproof.harness.schema.verdict import FailureClass


def facts(**changes: Any) -> ControlFacts:
    """Return the facts of a wrong answer that occurred in each run."""
    return ControlFacts(
        **{"failure_class": FailureClass.CORRUPT, "failed": 3, "tries": 3, "wrong_tokens": True, **changes}
    )


def absent(removes: str, tries: int = 3) -> ControlRow:
    """Return a control in which the failure did not occur."""
    return ControlRow(name=f"without {removes}", removes=removes, tries=tries)


def present(removes: str, failed: int = 3) -> ControlRow:
    """Return a control in which the failure occurred."""
    return ControlRow(name=f"without {removes}", removes=removes, tries=3, failed=failed)


@pytest.mark.parametrize(
    ("failed", "tries", "without_failed", "without_tries", "says"),
    [
        (3, 3, 0, 3, Strength.NEEDED),
        (3, 3, 1, 3, Strength.NOT_NEEDED),
        (2, 3, 0, 3, Strength.UNDETERMINED),
        (3, 3, 0, 2, Strength.UNDETERMINED),
        (1, 1, 0, 1, Strength.UNDETERMINED),
        (2, 10, 0, 10, Strength.UNDETERMINED),
        (5, 10, 0, 10, Strength.NEEDED),
        (2, 10, 1, 10, Strength.NOT_NEEDED),
        (3, 3, 0, 0, Strength.UNDETERMINED),
    ],
)
def test_need_is_only_reported_if_chance_is_unlikely(
    failed: int, tries: int, without_failed: int, without_tries: int, says: Strength
) -> None:
    """One failure without a thing shows that it is not needed.

    To show that it is needed takes several runs of both kinds.
    """
    assert strength_of(failed, tries, without_failed=without_failed, without_tries=without_tries) is says


@pytest.mark.parametrize(("failed", "tries", "runs"), [(3, 3, 3), (2, 3, 9), (1, 3, 12), (10, 10, 2), (5, 10, 7)])
def test_a_control_is_run_until_its_result_is_significant(failed: int, tries: int, runs: int) -> None:
    """A case that fails less often needs more runs of its control. Rare failures stay undetermined."""
    assert runs_needed(failed, tries) == runs
    enough = strength_of(failed, tries, without_failed=0, without_tries=runs) is Strength.NEEDED
    assert enough is (runs < 12)


def test_runs_that_fail_in_a_different_way_do_not_count() -> None:
    """Such runs do not test this failure."""
    row = ControlRow(name="n", removes=CACHING, tries=3, otherwise=3)
    assert conclude([row], facts()).controls[0].tells is Strength.UNDETERMINED


def test_the_conclusion_lists_what_is_required_not_required_and_undetermined() -> None:
    """The conclusion has one sentence for each group that is not empty."""
    made = conclude([absent(CACHING), absent(NAME), present(CONCURRENT), absent(POOL, tries=1)], facts())
    assert made.conclusion == (
        "The wrong answer occurred in 3 of 3 unmodified runs of the case. It needs prefix caching and reuse of the "
        "adapter's name: without any one of these it never occurred. It does not need concurrent requests: it also "
        "occurred without. Undetermined: a pool this small. The controls point at a cache key that "
        "identifies adapters by name."
    )
    assert conclude([], facts(wrong_tokens=False)).conclusion == (
        "The failure occurred in 3 of 3 unmodified runs of the case. The controls do not identify a single cause."
    )


@pytest.mark.parametrize(
    ("rows", "more", "kind"),
    [
        ([present(CACHING), absent(OTHER_REQUESTS)], {}, "stale model weights or state outside of the prefix cache"),
        ([present(CACHING), present(OTHER_REQUESTS)], {}, "a cause outside of the prefix cache"),
        ([absent(CACHING), absent(TIER), absent(POOL)], {}, "the second tier: what is stored in it or loaded from it"),
        ([absent(DISCONNECT), absent(CONCURRENT)], {}, "the state that a client disconnect leaves behind"),
        ([absent(POOL)], {"preempted": True}, "preemption, or the resumption after it"),
        ([absent(POOL)], {}, "eviction, or a pool that does not free its blocks"),
        ([absent(NAME), absent(PATH)], {}, "a cache key that identifies adapters by name and path"),
        ([absent(NAME), present(PATH)], {}, "a cache key that identifies adapters by name"),
        (
            [absent(ONE_SIDE_FIRST), absent(CONCURRENT)],
            {},
            "KV of both contents: what is computed while a change has reached one side only",
        ),
        ([absent(CACHING)], {}, ""),
        ([absent(NAME, tries=1)], {}, ""),
    ],
)
def test_the_rarest_thing_that_is_needed_gives_the_kind(rows: list[ControlRow], more: Any, kind: str) -> None:
    """What many cases need identifies no cause, and neither does an undetermined control."""
    assert conclude(rows, facts(**more)).mechanism == kind
