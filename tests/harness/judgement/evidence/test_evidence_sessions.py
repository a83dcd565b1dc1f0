"""Counters of sessions count turns, hits on what they computed, and blocks with a dropped token."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence
from support.histories import BLOCK, history, outcome

from coldproof.harness.features.sessions.evidence import Sessions
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.counters import Evidence

OPENED = outcome(0, range(100, 100 + BLOCK - 3), (7, 8, 9), session="a")  # the last token ends a block
KEPT = (*OPENED.prompt, 7, 8)


def later(number: int = 1, own: tuple[int, ...] = tuple(range(50)), **more: Any) -> Outcome:
    """Return the next turn of the session."""
    return outcome(number, (*KEPT, *own), session="a", cached_tokens=None, **more)


def counter(name: Evidence, *outcomes: Outcome) -> float:
    """Return one counter of a history of these outcomes."""
    return evidence(history(*outcomes), {})[name]


def test_a_later_turn_counts_if_it_was_answered() -> None:
    """The first turn does not count, and another name is another session."""
    other = outcome(2, range(100, 140), session="b")
    assert counter(Sessions.TURNS, OPENED, later(), other) == 1
    assert counter(Sessions.TURNS, OPENED, later(error="no"), other) == 0


def test_a_turn_counts_that_hit_what_its_session_held() -> None:
    """The count that the engine reports shows it."""
    assert counter(Sessions.HELD, OPENED, outcome(1, later().prompt, session="a", cached_tokens=5)) == 1
    assert counter(Sessions.HELD, OPENED, outcome(1, later().prompt, session="a", cached_tokens=0)) == 0


def test_a_turn_counts_if_the_one_before_had_another_adapter() -> None:
    """A turn with the same adapter as before does not count."""
    first, second = later(adapter="digest"), later(2, adapter="digest")
    assert counter(Sessions.SWITCHES, OPENED, first, second) == 1
    assert counter(Sessions.SWITCHES, OPENED, first, second, later(3)) == 2
    assert counter(Sessions.SWITCHES, OPENED, later()) == 0


@pytest.mark.parametrize(("cached", "hits"), [(48, 1), (BLOCK, 1), (0, 0), (len(KEPT), 0)])
def test_a_hit_counts_if_only_a_later_turn_had_computed_it(cached: int, hits: int) -> None:
    """A hit on what the first turn computed does not count."""
    after = outcome(2, later().prompt, cached_tokens=cached)
    assert counter(Sessions.HITS, OPENED, later(), after) == hits


def test_a_hit_of_a_turn_or_under_another_salt_does_not_count() -> None:
    """Only requests outside of a session show what it shares."""
    for after in (
        outcome(2, later().prompt, cached_tokens=48, session="b"),
        outcome(2, later().prompt, cached_tokens=48, salt="red"),
    ):
        assert counter(Sessions.HITS, OPENED, later(), after) == 0


@pytest.mark.parametrize(
    ("turn", "prompt", "count"),
    [
        (later(), (*OPENED.prompt, 7, 8, 9, 1), 1),
        (later(own=(9, 1, 2)), (*OPENED.prompt, 7, 8, 9, 1), 0),  # the same token came in its place
        (later(), (*OPENED.prompt, 7, 8), 0),
        (later(), (*OPENED.prompt, 7, 8, 1, 1), 0),
    ],
)
def test_a_request_counts_that_begins_with_what_a_session_dropped(
    turn: Outcome, prompt: tuple[int, ...], count: int
) -> None:
    """It would share the block if the old hash had stayed."""
    assert counter(Sessions.DROPS, OPENED, turn, outcome(2, prompt)) == count


def test_a_dropped_token_inside_a_block_does_not_count() -> None:
    """No whole block had it."""
    inside = outcome(0, range(100, 100 + BLOCK - 4), (7, 8, 9), session="a")
    turn = outcome(1, (*inside.prompt, 7, 8, 1, 2, 3), session="a", cached_tokens=None)
    after = outcome(2, (*inside.prompt, 7, 8, 9, 1))
    assert counter(Sessions.DROPS, inside, turn, after) == 0


@pytest.mark.parametrize(
    ("length", "count"), [(BLOCK - 3, 1), (BLOCK - 2, 0)]
)  # an answer of three, whose last token is not kept
def test_a_session_counts_that_held_less_than_a_block(length: int, count: int) -> None:
    """Its first prompt and the answer, before the second turn came. Without one it does not count."""
    first = outcome(0, range(100, 100 + length), (7, 8, 9), session="a")
    turn = outcome(1, (*first.prompt, 7, 8, 1, 2, 3), session="a", cached_tokens=None)
    assert counter(Sessions.SHORT_FIRST, first, turn) == count
    assert counter(Sessions.SHORT_FIRST, first) == 0
