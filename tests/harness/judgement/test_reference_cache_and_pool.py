"""What the reference cache expects of a small pool is compared with a pool that evicts like vLLM's."""

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
        """Return the cached tokens of a request, or None if it does not fit. Its blocks are free afterwards.

        A request that does not fit changes nothing: vLLM's allocate_slots touches what was hit only if there is room
        for the rest.
        """
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


def served(pool: Pool, requests: list[tuple[str, int, int]]) -> list[tuple[int, int | None]]:
    """Return, for each request that fits, its hit and its minimum expected hit."""
    size, hits, made = len(pool.blocks), [], []
    for number, (stem, length, answer) in enumerate(requests):
        tokens = tuple(7000 + 100 * number + i for i in range(answer))
        one = outcome(number, STEMS[stem][:length], answer=tokens, max_tokens=answer)
        if (hit := pool.serve(one)) is not None:
            hits.append(hit)
            made.append(one)
    limits = bounds(history(*made, shape=shape(pool_blocks=size))) if made else {}
    return [(hit, limits[one.request].at_least) for hit, one in zip(hits, made, strict=True)]


@settings(max_examples=400, deadline=None)
@given(st.integers(2, 30), REQUESTS)
@example(4, THIRD_DOES_NOT_FIT)
def test_no_hit_is_expected_on_what_such_a_pool_has_evicted(size: int, requests: list[tuple[str, int, int]]) -> None:
    """The requests come one after another, have any sizes, and share blocks in any way."""
    for hit, least in served(Pool([None] * size), requests):
        assert least is None or least <= hit


@pytest.mark.parametrize("beginnings_first", [False, True])
def test_the_minimum_expected_hit_depends_on_the_order_of_eviction(beginnings_first: bool) -> None:
    """Ten of twenty blocks are used, then eleven of another prompt.

    Most of the first ones stay, unless they go first.
    """
    requests = [("a", 10 * BLOCK, 1), ("b", 11 * BLOCK, 1), ("a", 10 * BLOCK, 1)]
    hit, least = served(Pool([None] * 20, beginnings_first), requests)[-1]
    assert least is not None
    assert (hit >= least) is not beginnings_first


@pytest.mark.parametrize(
    ("leaves", "pool", "least"), [(False, 20, 6), (True, 20, 0), (True, 23, 0), (True, 24, 9), (False, 24, 9)]
)
def test_with_eviction_of_leaves_a_hit_on_a_whole_prompt_is_expected_or_none(
    leaves: bool, pool: int, least: int
) -> None:
    """After prompts of 10 and 11 blocks, a pool of 20 keeps a part of the first.

    If it is evicted as one, nothing is kept.
    """
    first, other, again = (
        outcome(number, STEMS[stem][: length * BLOCK], answer=(7,), max_tokens=1)
        for number, (stem, length) in enumerate((("a", 10), ("b", 11), ("a", 10)))
    )
    known = history(first, other, again, shape=shape(pool_blocks=pool, evicts_leaves=leaves))
    assert (bounds(known)[2].at_least or 0) == least * BLOCK


def sequence_hits(*outcomes: Outcome) -> dict[int, int | None]:
    """Return the minimum expected hit of each request if two whole sequences are kept, token by token."""
    kept = history(*outcomes, shape=shape(block_size=1, pool_blocks=4096, sequences=2))
    return {request: limits.at_least for request, limits in bounds(kept).items()}


def test_with_kept_sequences_the_latest_must_be_hit_to_the_token() -> None:
    """A repeated prompt hits all but its last token, and a next turn hits what decode wrote."""
    again = outcome(1, range(40))
    turn = outcome(2, (*range(40), 7, 8, 50, 51))
    assert sequence_hits(outcome(0, range(40)), again, turn) == {0: None, 1: 39, 2: 42}


def test_with_kept_sequences_no_hit_is_expected_after_another() -> None:
    """Another sequence may have replaced it. A prompt with less than half in common may use another place."""
    other = outcome(1, range(100, 140))
    assert sequence_hits(outcome(0, range(40)), other, outcome(2, range(40)))[2] is None
    assert sequence_hits(outcome(0, range(40)), outcome(1, (*range(19), *range(200, 221))))[1] is None
    assert sequence_hits(outcome(0, range(40)), outcome(1, (*range(20), *range(200, 220))))[1] == 20
