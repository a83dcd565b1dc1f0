"""Ranks have separate caches: the bounds of a rank follow from what it has computed itself."""

from __future__ import annotations

from typing import Any

from support.histories import history, outcome, shape

from coldproof.harness.history.records import CachePartition, Outcome
from coldproof.harness.judgement.reference_cache import Bounds, bounds

PROMPT = range(100, 140)  # two whole blocks of 16 and a half
NOTHING, ALL = Bounds(at_least=0, at_most=0), Bounds(at_least=32, at_most=39)


def on_rank(rank: int, number: int, **more: Any) -> Outcome:
    """Return the same prompt on a rank."""
    return outcome(number, PROMPT, partition=CachePartition(None, 0, None, rank=rank), **more)


def last_bounds(*outcomes: Outcome, **more: Any) -> Bounds:
    """Return the bounds of the last of these requests to an engine with two ranks."""
    return bounds(history(*outcomes, shape=shape(ranks=2, **more)))[outcomes[-1].request]


def test_a_prompt_is_hit_on_the_rank_that_computed_it_and_on_no_other() -> None:
    """Requests to another rank between the two change nothing."""
    assert last_bounds(on_rank(0, 0), on_rank(0, 1)) == ALL
    assert last_bounds(on_rank(1, 0), on_rank(1, 1)) == ALL
    assert last_bounds(on_rank(0, 0), on_rank(1, 1)) == NOTHING
    assert last_bounds(on_rank(0, 0), on_rank(1, 1), on_rank(0, 2)) == ALL


def test_ranks_are_separate_in_a_full_pool_too() -> None:
    """What other ranks computed takes no room of this one, but the pool may be counted as if it did."""
    assert last_bounds(on_rank(0, 0), on_rank(1, 1), on_rank(0, 2), pool_blocks=8).at_most == 39
    assert last_bounds(on_rank(0, 0), on_rank(1, 1), pool_blocks=8).at_most == 0


def test_if_the_engine_chooses_the_rank_all_may_be_hit_and_need_not() -> None:
    """This holds for the request itself and for those after it."""
    unnamed = [outcome(number, PROMPT) for number in range(3)]
    assert last_bounds(*unnamed) == Bounds(at_least=0, at_most=39)
    assert last_bounds(unnamed[0], on_rank(1, 1)) == Bounds(at_least=0, at_most=39)
    assert last_bounds(on_rank(1, 0), unnamed[1]) == Bounds(at_least=0, at_most=39)
