"""A conclusion says no more than its controls show."""

from __future__ import annotations

from typing import Any

import pytest

from coldproof.adapters.spec.cell import CACHING, POOL, TIER
from coldproof.harness.proof.diagnose.conclusion import ControlFacts, conclude, runs_needed, strength_of
from coldproof.harness.proof.diagnose.controls import CONCURRENT, DISCONNECT, NAME, ONE_SIDE_FIRST, OTHER_REQUESTS, PATH
from coldproof.reports.schema.case import ControlRow, Strength
from coldproof.reports.schema.verdict import FailureClass


def facts(**changes: Any) -> ControlFacts:
    """A wrong answer that came each time."""
    return ControlFacts(
        **{"failure_class": FailureClass.CORRUPT, "failed": 3, "tries": 3, "wrong_tokens": True, **changes}
    )


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
    assert strength_of(failed, tries, without_failed=without_failed, without_tries=without_tries) is says


@pytest.mark.parametrize(("failed", "tries", "runs"), [(3, 3, 3), (2, 3, 9), (1, 3, 12), (10, 10, 2), (5, 10, 7)])
def test_a_control_is_run_as_often_as_tells_something(failed: int, tries: int, runs: int) -> None:
    """The less steady the case, the more often; what is rarer than patience allows stays untold."""
    assert runs_needed(failed, tries) == runs
    enough = strength_of(failed, tries, without_failed=0, without_tries=runs) is Strength.NEEDED
    assert enough is (runs < 12)


def test_runs_that_fail_otherwise_do_not_count() -> None:
    """They were no test of this failure."""
    row = ControlRow(name="n", removes=CACHING, tries=3, otherwise=3)
    assert conclude([row], facts()).controls[0].tells is Strength.NOT_TOLD


def test_the_words_name_what_is_needed_what_is_not_and_what_is_open() -> None:
    """Each in a sentence of its own, and none that would be empty."""
    made = conclude([gone(CACHING), gone(NAME), still(CONCURRENT), gone(POOL, tries=1)], facts())
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
        ([still(CACHING), gone(OTHER_REQUESTS)], {}, "stale model weights or state outside of the prefix cache"),
        ([still(CACHING), still(OTHER_REQUESTS)], {}, "a cause outside of the prefix cache"),
        ([gone(CACHING), gone(TIER), gone(POOL)], {}, "the second tier: what is stored in it or loaded from it"),
        ([gone(DISCONNECT), gone(CONCURRENT)], {}, "the state that a client disconnect leaves behind"),
        ([gone(POOL)], {"preempted": True}, "preemption, or the resumption after it"),
        ([gone(POOL)], {}, "eviction, or a pool that does not free its blocks"),
        ([gone(NAME), gone(PATH)], {}, "a cache key that identifies adapters by name and path"),
        ([gone(NAME), still(PATH)], {}, "a cache key that identifies adapters by name"),
        (
            [gone(ONE_SIDE_FIRST), gone(CONCURRENT)],
            {},
            "KV of both contents: what is computed while a change has reached one side only",
        ),
        ([gone(CACHING)], {}, ""),
        ([gone(NAME, tries=1)], {}, ""),
    ],
)
def test_the_rarest_thing_that_is_needed_gives_the_kind(rows: list[ControlRow], more: Any, kind: str) -> None:
    """What many cases need says less; and what is not told says nothing."""
    assert conclude(rows, facts(**more)).mechanism == kind
