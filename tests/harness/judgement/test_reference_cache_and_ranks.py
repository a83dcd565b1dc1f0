"""Ranks with caches of their own: a rank owes, and may hit, what it has computed itself."""

from __future__ import annotations

from typing import Any

from support.histories import history, outcome, shape

from coldproof.harness.history.records import CachePartition, Outcome
from coldproof.harness.judgement.reference_cache import Bounds, bounds

PROMPT = range(100, 140)  # two whole blocks of 16 and a half
NOTHING, ALL = Bounds(at_least=0, at_most=0), Bounds(at_least=32, at_most=39)


def on(rank: int, number: int, **more: Any) -> Outcome:
    """The same prompt on a rank."""
    return outcome(number, PROMPT, residence=CachePartition(None, 0, None, rank=rank), **more)


def last(*outcomes: Outcome, **more: Any) -> Bounds:
    """The bounds of the last of some requests to an engine with two ranks."""
    return bounds(history(*outcomes, shape=shape(ranks=2, **more)))[outcomes[-1].request]


def test_a_prompt_is_hit_on_the_rank_that_computed_it_and_on_no_other() -> None:
    """Whatever happened on another one in between."""
    assert last(on(0, 0), on(0, 1)) == ALL
    assert last(on(1, 0), on(1, 1)) == ALL
    assert last(on(0, 0), on(1, 1)) == NOTHING
    assert last(on(0, 0), on(1, 1), on(0, 2)) == ALL


def test_in_a_pool_without_room_for_everything_too() -> None:
    """What other ranks computed takes no room of this one, but the pool may be counted as if it did."""
    assert last(on(0, 0), on(1, 1), on(0, 2), pool_blocks=8).at_most == 39
    assert last(on(0, 0), on(1, 1), pool_blocks=8).at_most == 0


def test_where_the_engine_chooses_the_rank_nothing_is_owed_and_all_may_be_hit() -> None:
    """For the request itself and for those that come after it."""
    unnamed = [outcome(number, PROMPT) for number in range(3)]
    assert last(*unnamed) == Bounds(at_least=0, at_most=39)
    assert last(unnamed[0], on(1, 1)) == Bounds(at_least=0, at_most=39)
    assert last(on(1, 0), unnamed[1]) == Bounds(at_least=0, at_most=39)
