"""A conclusion says no more than its controls show."""

from __future__ import annotations

from typing import Any

import pytest

from harness.diagnosis.conclusion import Facts, conclude, runs_needed, told
from harness.diagnosis.controls import BEFORE, HANG_UP, NAME, PATH, TOGETHER
from harness.variant import CACHING, POOL, TIER
from reports.schema import ControlRow, FailureClass, Strength


def facts(**changes: Any) -> Facts:
    """A wrong answer that came each time."""
    return Facts(**{"failure_class": FailureClass.CORRUPT, "failed": 3, "tries": 3, "wrong_tokens": True, **changes})


def gone(removes: str, tries: int = 3) -> ControlRow:
    """A control without the failure."""
    return ControlRow(name=f"without {removes}", removes=removes, tries=tries)


def still(removes: str, failed: int = 3) -> ControlRow:
    """A control with it."""
    return ControlRow(name=f"without {removes}", removes=removes, tries=3, failed=failed)


@pytest.mark.parametrize(
    ("failed", "tries", "without_failed", "without_tries", "says"),
    [
        (3, 3, 0, 3, Strength.NEEDED),
        (3, 3, 1, 3, Strength.NOT_NEEDED),
        (2, 3, 0, 3, Strength.NOT_TOLD),
        (3, 3, 0, 2, Strength.NOT_TOLD),
        (1, 1, 0, 1, Strength.NOT_TOLD),
        (2, 10, 0, 10, Strength.NOT_TOLD),
        (5, 10, 0, 10, Strength.NEEDED),
        (2, 10, 1, 10, Strength.NOT_NEEDED),
        (3, 3, 0, 0, Strength.NOT_TOLD),
    ],
)
def test_need_is_only_said_where_chance_is_unlikely(
    failed: int, tries: int, without_failed: int, without_tries: int, says: Strength
) -> None:
    """One failure without a thing settles that it is not needed; that it is takes several runs of both kinds."""
    assert told(failed, tries, without_failed=without_failed, without_tries=without_tries) is says


@pytest.mark.parametrize(("failed", "tries", "runs"), [(3, 3, 3), (2, 3, 9), (1, 3, 12), (10, 10, 2), (5, 10, 7)])
def test_a_control_is_run_as_often_as_tells_something(failed: int, tries: int, runs: int) -> None:
    """The less steady the case, the more often; what is rarer than patience allows stays untold."""
    assert runs_needed(failed, tries) == runs
    enough = told(failed, tries, without_failed=0, without_tries=runs) is Strength.NEEDED
    assert enough is (runs < 12)


def test_runs_that_fail_otherwise_do_not_count() -> None:
    """They were no test of this failure."""
    row = ControlRow(name="n", removes=CACHING, tries=3, otherwise=3)
    assert conclude([row], facts()).controls[0].tells is Strength.NOT_TOLD


def test_the_words_name_what_is_needed_what_is_not_and_what_is_open() -> None:
    """Each in a sentence of its own, and none that would be empty."""
    made = conclude([gone(CACHING), gone(NAME), still(TOGETHER), gone(POOL, tries=1)], facts())
    assert made.conclusion == (
        "The wrong answer came in 3 of 3 runs of the case as it is. It needs prefix caching and the adapter's name used"
        " again: without any one of these it never came. It does not need requests side by side: it came without. "
        "Not told: a pool this small. This points at a cache key that knows adapters by their names."
    )
    assert conclude([], facts(wrong_tokens=False)).conclusion == (
        "The failure came in 3 of 3 runs of the case as it is. No kind of fault is singled out by this."
    )


@pytest.mark.parametrize(
    ("rows", "more", "kind"),
    [
        ([still(CACHING), gone(BEFORE)], {}, "weights or state that outlive their time, not the prefix cache"),
        ([still(CACHING), still(BEFORE)], {}, "something else than the prefix cache"),
        ([gone(CACHING), gone(TIER), gone(POOL)], {}, "the second tier: what is stored in it or loaded from it"),
        ([gone(HANG_UP), gone(TOGETHER)], {}, "what a client that hangs up leaves behind"),
        ([gone(POOL)], {"preempted": True}, "preemption and what follows it"),
        ([gone(POOL)], {}, "eviction, or a pool that does not give back what it holds"),
        ([gone(NAME), gone(PATH)], {}, "a cache key that knows adapters by name and path"),
        ([gone(NAME), still(PATH)], {}, "a cache key that knows adapters by their names"),
        ([gone(CACHING)], {}, ""),
        ([gone(NAME, tries=1)], {}, ""),
    ],
)
def test_the_rarest_thing_that_is_needed_gives_the_kind(rows: list[ControlRow], more: Any, kind: str) -> None:
    """What many cases need says less; and what is not told says nothing."""
    assert conclude(rows, facts(**more)).mechanism == kind
