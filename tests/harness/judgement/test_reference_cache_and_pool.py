"""What the reference cache says a small pool still holds, put to a pool that evicts as vLLM's does."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.histories import BLOCK, history, outcome, shape

from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.reference_cache import bounds

STEMS = {name: tuple(range(start, start + 12 * BLOCK)) for name, start in (("a", 0), ("b", 1000), ("c", 2000))}


@dataclasses.dataclass
class Pool:
    """Blocks in the order in which they are taken next, each with the prefix that it holds, if any."""

    blocks: list[tuple[int, ...] | None]
    beginnings_first: bool = False  # a fault: the order in which a request gives its blocks back

    def serve(self, one: Outcome) -> int | None:
        """The cached tokens of a request, after which its blocks are free again. None where it does not fit: then it
        has touched nothing, as vLLM's allocate_slots touches what was hit only once there is room for the rest."""
        tokens, before = one.prompt + one.token_ids, list(self.blocks)
        held: list[tuple[int, ...] | None] = []
        while (end := BLOCK * (len(held) + 1)) < len(one.prompt) and tokens[:end] in self.blocks:
            self.blocks.remove(tokens[:end])
            held.append(tokens[:end])
        hit, needed = len(held) * BLOCK, -(-len(tokens) // BLOCK)
        if needed - len(held) > len(self.blocks):
            self.blocks = before
            return None
        del self.blocks[: needed - len(held)]
        ends = range(BLOCK * (len(held) + 1), BLOCK * (needed + 1), BLOCK)
        held += [tokens[:end] if end < len(tokens) else None for end in ends]
        self.blocks += held if self.beginnings_first else held[::-1]
        return hit


REQUESTS = st.lists(
    st.tuples(st.sampled_from(sorted(STEMS)), st.integers(1, 10 * BLOCK), st.integers(1, 2 * BLOCK)),
    min_size=2,
    max_size=9,
)


THIRD_DOES_NOT_FIT = [("b", 32, 1), ("a", 16, 1), ("b", 33, 32), ("a", 1, 1), ("a", 1, 1), ("a", 17, 1)]


def served(pool: Pool, asked: list[tuple[str, int, int]]) -> list[tuple[int, int | None]]:
    """For each request that fits, what it hit and what it was owed."""
    size, hits, made = len(pool.blocks), [], []
    for number, (stem, length, answer) in enumerate(asked):
        tokens = tuple(7000 + 100 * number + i for i in range(answer))
        one = outcome(number, STEMS[stem][:length], answer=tokens, max_tokens=answer)
        if (hit := pool.serve(one)) is not None:
            hits.append(hit)
            made.append(one)
    owed = bounds(history(*made, shape=shape(pool_blocks=size))) if made else {}
    return [(hit, owed[one.request].at_least) for hit, one in zip(hits, made, strict=True)]


@settings(max_examples=400, deadline=None)
@given(st.integers(2, 30), REQUESTS)
@example(4, THIRD_DOES_NOT_FIT)
def test_nothing_is_owed_that_such_a_pool_has_evicted(size: int, asked: list[tuple[str, int, int]]) -> None:
    """Requests one after another, of any sizes, that share blocks as they like."""
    for hit, owed in served(Pool([None] * size), asked):
        assert owed is None or owed <= hit


@pytest.mark.parametrize("beginnings_first", [False, True])
def test_what_is_owed_tells_the_order_of_eviction(beginnings_first: bool) -> None:
    """Eleven blocks of twenty, then twelve of another prompt: most of the first are left, unless those went first."""
    asked = [("a", 10 * BLOCK, 1), ("b", 11 * BLOCK, 1), ("a", 10 * BLOCK, 1)]
    hit, owed = served(Pool([None] * 20, beginnings_first), asked)[-1]
    assert owed is not None
    assert (hit >= owed) is not beginnings_first


@pytest.mark.parametrize(
    ("leaves", "pool", "least"), [(False, 20, 6), (True, 20, 0), (True, 23, 0), (True, 24, 9), (False, 24, 9)]
)
def test_where_leaves_are_evicted_a_prompt_is_owed_whole_or_not_at_all(leaves: bool, pool: int, least: int) -> None:
    """One of 10 blocks, then one of 11: a pool of 20 keeps a part of the first or, where it goes as one, nothing."""
    first, other, again = (
        outcome(number, STEMS[stem][: length * BLOCK], answer=(7,), max_tokens=1)
        for number, (stem, length) in enumerate((("a", 10), ("b", 11), ("a", 10)))
    )
    known = history(first, other, again, shape=shape(pool_blocks=pool, evicts_leaves=leaves))
    assert (bounds(known)[2].at_least or 0) == least * BLOCK


def sequences(*outcomes: Outcome) -> dict[int, int | None]:
    """What is owed to each where two whole sequences are kept, token by token."""
    kept = history(*outcomes, shape=shape(block_size=1, pool_blocks=4096, sequences=2))
    return {request: limits.at_least for request, limits in bounds(kept).items()}


def test_where_sequences_are_kept_the_latest_is_owed_to_the_token() -> None:
    """All but the last token of a prompt sent again, and what decode wrote."""
    again = outcome(1, range(40))
    turn = outcome(2, (*range(40), 7, 8, 50, 51))
    assert sequences(outcome(0, range(40)), again, turn) == {0: None, 1: 39, 2: 42}


def test_where_sequences_are_kept_nothing_is_owed_behind_another() -> None:
    """It may have taken the place; and one that has less than half in common may be put elsewhere."""
    other = outcome(1, range(100, 140))
    assert sequences(outcome(0, range(40)), other, outcome(2, range(40)))[2] is None
    assert sequences(outcome(0, range(40)), outcome(1, (*range(19), *range(200, 221))))[1] is None
    assert sequences(outcome(0, range(40)), outcome(1, (*range(20), *range(200, 220))))[1] == 20
