"""The reference cache bounds every cached-token count: at most what was computed, and at least what must be cached."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories import BLOCK, history, outcome, shape, tokens

from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.history.records import (
    CachePartition,
    Identity,
    Outcome,
    common_prefix,
    written_tokens,
)
from coldproof.harness.judgement.reference_cache import Bounds, bounds, has_room

PROMPT = range(100, 140)  # two whole blocks of 16 and a half
A, B = Identity("digest-a", None), Identity("digest-b", None)


def second_bounds(first: Outcome, then: Outcome, **engine: object) -> Bounds:
    """Return the bounds of the second of two requests."""
    return bounds(history(first, then, shape=shape(**engine)))[then.request]


def test_any_of_several_answers_may_have_written_what_is_hit() -> None:
    """A sampled answer may by chance continue as another prompt does. A long run has found such a case."""
    prompt = tuple(range(40, 71))
    several = outcome(0, prompt, (7, 8, 9), options=ResponseOptions(answers=2), others=(tokens(5, 6, 4),))
    after = outcome(1, (*prompt, 5, 77, 78))
    assert bounds(history(several, after))[1].at_most == len(prompt) + 1


@pytest.mark.parametrize(("keeps_scores", "most"), [(False, len(PROMPT) - 1), (True, len(PROMPT))])
def test_a_prompt_is_hit_whole_where_its_scores_are_kept(keeps_scores: bool, most: int) -> None:
    """Otherwise its last token is computed for them."""
    first, again = outcome(0, PROMPT, (1, 2, 3)), outcome(1, PROMPT)
    assert second_bounds(first, again, keeps_scores=keeps_scores, block_size=1).at_most == most


@pytest.mark.parametrize(("second_tier", "most"), [(False, len(PROMPT) - 1), (True, len(PROMPT))])
def test_several_answers_may_hit_all_that_one_may(second_tier: bool, most: int) -> None:
    """A second tier loads the last token as well: a release run called 96 of 96 tokens wrong."""
    several = outcome(1, PROMPT, options=ResponseOptions(answers=3))
    assert second_bounds(outcome(0, PROMPT), several, second_tier=second_tier).at_most == most


def test_a_repeated_prompt_must_hit_whole_blocks_and_may_hit_all_but_its_last_token() -> None:
    """The logits of the last token have to be computed."""
    assert second_bounds(outcome(0, PROMPT), outcome(1, PROMPT)) == Bounds(at_least=32, at_most=39)


def test_the_first_request_can_hit_nothing() -> None:
    """It cannot hit what a later request computes either."""
    assert bounds(history(outcome(0, PROMPT), outcome(1, PROMPT)))[0] == Bounds(at_least=0, at_most=0)


def test_a_prompt_of_whole_blocks_must_hit_all_but_its_last_block() -> None:
    """The last prompt token is never cached, so neither is the block that it ends."""
    whole = range(100, 132)
    assert second_bounds(outcome(0, whole), outcome(1, whole)) == Bounds(at_least=16, at_most=31)


@pytest.mark.parametrize(("length", "least"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_the_minimum_expected_hit_ends_at_a_block(length: int, least: int) -> None:
    """The lengths are just before, at and just after a boundary."""
    prompt = range(100, 100 + length)
    assert second_bounds(outcome(0, prompt), outcome(1, prompt)).at_least == least


@pytest.mark.parametrize(("block", "least"), [(1, 39), (7, 35), (24, 24), (40, 0), (64, 0)])
def test_the_minimum_expected_hit_follows_the_engines_block_size(block: int, least: int) -> None:
    """The upper bound does not depend on blocks."""
    assert second_bounds(outcome(0, PROMPT), outcome(1, PROMPT), block_size=block) == Bounds(least, 39)


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 80), st.sampled_from((5, 16, 32)))
def test_the_bounds_hold_for_any_two_prompts_that_share_a_prefix(shared: int, one: int, other: int, block: int) -> None:
    """At most the shared tokens can be hit, at least their whole blocks, and never the last token of the prompt.

    In smaller blocks, a few tokens of a short prompt may be hit by chance.
    """
    stem = tuple(range(shared))
    first, then = outcome(0, (*stem, *[500] * one)), outcome(1, (*stem, *[600] * other))
    assert second_bounds(first, then, block_size=block) == Bounds(shared // block * block, shared)


def test_decode_writes_all_but_the_last_sampled_token() -> None:
    """No pass computes the KV of the last token, so a next turn must not hit it."""
    first = outcome(0, range(100, 120), tuple(range(200, 213)))  # 20 + 13 tokens, of which 32 have KV
    turn = outcome(1, (*first.prompt, *first.token_ids, 300))
    assert second_bounds(first, turn) == Bounds(at_least=32, at_most=32)
    assert len(written_tokens(first)) == 32


def test_another_identity_shares_nothing() -> None:
    """No hit is expected or allowed, even with the same name."""
    reloaded = outcome(1, PROMPT, adapter="digest-b", partition=CachePartition("tenant", 2, None))
    assert second_bounds(outcome(0, PROMPT, adapter="digest-a"), reloaded) == Bounds(0, 0)


def test_the_base_model_and_an_adapter_share_nothing() -> None:
    """This holds in either order."""
    assert second_bounds(outcome(0, PROMPT), outcome(1, PROMPT, adapter="digest-a")) == Bounds(0, 0)
    assert second_bounds(outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT)) == Bounds(0, 0)


@pytest.mark.parametrize(
    ("salts", "limits"),
    [
        (("red", "red"), Bounds(32, 39)),
        (("red", "Red"), Bounds(0, 0)),
        (("red", None), Bounds(0, 0)),
        ((None, "red"), Bounds(0, 0)),
    ],
)
def test_only_the_same_salt_shares(salts: tuple[str | None, str | None], limits: Bounds) -> None:
    """Similar salts are different, and so is no salt."""
    assert second_bounds(outcome(0, PROMPT, salt=salts[0]), outcome(1, PROMPT, salt=salts[1])) == limits


def test_a_reload_of_the_same_content_may_hit_and_need_not() -> None:
    """The identity is equal, so a hit is allowed.

    The cache partition differs (an engine may key by load), so none is expected.
    """
    again = outcome(1, PROMPT, adapter="digest-a", partition=CachePartition("tenant", 2, None))
    assert second_bounds(outcome(0, PROMPT, adapter="digest-a"), again) == Bounds(at_least=0, at_most=39)


def test_the_same_content_with_two_names_may_hit_and_need_not() -> None:
    """A name is not part of an identity, but of a cache partition."""
    other = outcome(1, PROMPT, adapter="digest-a", partition=CachePartition("other", 1, None))
    assert second_bounds(outcome(0, PROMPT, adapter="digest-a"), other) == Bounds(at_least=0, at_most=39)


def test_the_first_content_may_hit_its_own_blocks_after_another() -> None:
    """After A, B and A, a hit on the first A's blocks is right and one on B's is not."""
    first = outcome(0, PROMPT, adapter="digest-a")
    between = outcome(1, (*PROMPT, *range(300, 400)), adapter="digest-b", partition=CachePartition("tenant", 2, None))
    back = outcome(2, (*PROMPT, *range(300, 400)), adapter="digest-a", partition=CachePartition("tenant", 3, None))
    assert bounds(history(first, between, back))[2] == Bounds(at_least=0, at_most=40)


def test_blocks_of_a_concurrent_writer_may_be_hit_and_need_not() -> None:
    """A request that runs at the same time may or may not have written its blocks before the lookup."""
    first, beside = outcome(0, PROMPT, finished=2.0), outcome(1, PROMPT, finished=2.0)
    limits = bounds(history(first, beside))
    assert limits == {0: Bounds(0, 39), 1: Bounds(0, 39)}


def test_blocks_of_a_request_without_an_answer_may_be_hit_and_need_not() -> None:
    """It may have been prefilled before it failed."""
    broken = outcome(0, PROMPT, (), error="HTTP 500", max_tokens=3)
    assert second_bounds(broken, outcome(1, PROMPT)) == Bounds(at_least=0, at_most=39)


def test_an_overlapped_request_may_hit_either_version_and_need_not() -> None:
    """The adapter of its lookup is unknown."""
    during = outcome(1, PROMPT, adapter="digest-a", identities=(A, B))
    assert second_bounds(outcome(0, PROMPT, adapter="digest-a"), during) == Bounds(at_least=0, at_most=39)
    assert second_bounds(outcome(0, PROMPT, adapter="digest-b"), during) == Bounds(at_least=0, at_most=39)


def test_blocks_of_an_overlapped_request_may_be_hit_and_need_not() -> None:
    """Its blocks belong to one of two versions. A later request of either version may hit them, and none has to."""
    during = outcome(0, PROMPT, adapter="digest-a", identities=(A, B))
    for load, digest in ((1, "digest-a"), (2, "digest-b")):
        after = outcome(1, PROMPT, adapter=digest, partition=CachePartition("tenant", load, None))
        assert second_bounds(during, after) == Bounds(at_least=0, at_most=39)


def test_no_hit_is_expected_after_a_change() -> None:
    """A request that overlaps a change shows that there was one, even if the load number is the same."""
    first, after = outcome(0, PROMPT, adapter="digest-a"), outcome(2, PROMPT, adapter="digest-a")
    during = outcome(1, range(500, 520), adapter="digest-a", identities=(A, B))
    elsewhere = outcome(1, range(500, 520), adapter="digest-a", partition=CachePartition("other", 9, None))
    assert bounds(history(first, during, after))[2] == Bounds(at_least=0, at_most=39)
    assert bounds(history(first, elsewhere, after))[2] == Bounds(at_least=32, at_most=39)


def test_an_unknown_block_size_gives_no_lower_bound() -> None:
    """Unknown is not zero, and the upper bound still holds."""
    assert second_bounds(outcome(0, PROMPT), outcome(1, PROMPT), block_size=None) == Bounds(None, 39)


def test_unknown_caching_gives_no_lower_bound() -> None:
    """An engine that does not report whether it caches may not cache."""
    assert second_bounds(outcome(0, PROMPT), outcome(1, PROMPT), prefix_caching=None).at_least is None


def test_an_engine_with_caching_off_must_not_hit() -> None:
    """Both bounds are known to be zero: a cold oracle that reports a hit is not cold."""
    assert second_bounds(outcome(0, PROMPT), outcome(1, PROMPT), prefix_caching=False) == Bounds(0, 0)


@pytest.mark.parametrize(("pool", "least"), [(6, 32), (4, 32), (3, 16), (2, None), (None, None)])
def test_what_a_pool_may_have_evicted_is_not_expected(pool: int | None, least: int | None) -> None:
    """Twice 40 + 3 tokens take six blocks, or four if two are shared. An unknown pool may have any size."""
    assert math.ceil(43 / BLOCK) * 2 == 6
    pair = history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=pool))
    assert bounds(pair)[1] == Bounds(least, 39)
    assert has_room(pair) is (pool == 6)


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_the_common_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    """The lists are equal up to it, and not one token further."""
    length = common_prefix(tuple(left), tuple(right))
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
