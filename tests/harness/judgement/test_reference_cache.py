"""The reference cache bounds every cached-token count: at most what was computed, at least what is owed."""

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


def second(first: Outcome, then: Outcome, **engine: object) -> Bounds:
    """The bounds of the second of two requests."""
    return bounds(history(first, then, shape=shape(**engine)))[then.request]


def test_any_of_several_answers_may_have_written_what_is_hit() -> None:
    """A sampled answer goes on as another prompt does, by chance: found in a long run."""
    prompt = tuple(range(40, 71))
    several = outcome(0, prompt, (7, 8, 9), surface=ResponseOptions(answers=2), others=(tokens(5, 6, 4),))
    after = outcome(1, (*prompt, 5, 77, 78))
    assert bounds(history(several, after))[1].at_most == len(prompt) + 1


def test_a_prompt_sent_again_owes_its_whole_blocks_and_may_hit_all_but_its_last_token() -> None:
    """The last token's logits have to be computed, whatever is cached."""
    assert second(outcome(0, PROMPT), outcome(1, PROMPT)) == Bounds(at_least=32, at_most=39)


def test_the_first_request_can_hit_nothing() -> None:
    """Also not what comes after it."""
    assert bounds(history(outcome(0, PROMPT), outcome(1, PROMPT)))[0] == Bounds(at_least=0, at_most=0)


def test_a_prompt_of_whole_blocks_owes_all_but_its_last_block() -> None:
    """The last prompt token is never cached, so neither is the block that it closes."""
    whole = range(100, 132)
    assert second(outcome(0, whole), outcome(1, whole)) == Bounds(at_least=16, at_most=31)


@pytest.mark.parametrize(("length", "owed"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_what_is_owed_ends_at_a_block(length: int, owed: int) -> None:
    """Just before, at and just behind the boundary."""
    prompt = range(100, 100 + length)
    assert second(outcome(0, prompt), outcome(1, prompt)).at_least == owed


@pytest.mark.parametrize(("block", "owed"), [(1, 39), (7, 35), (24, 24), (40, 0), (64, 0)])
def test_what_is_owed_follows_the_engines_own_block_size(block: int, owed: int) -> None:
    """Whatever it is; the upper bound knows no blocks."""
    assert second(outcome(0, PROMPT), outcome(1, PROMPT), block_size=block) == Bounds(owed, 39)


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 80), st.sampled_from((5, 16, 32)))
def test_the_bounds_hold_for_any_two_prompts_that_share_a_prefix(shared: int, one: int, other: int, block: int) -> None:
    """At most the shared tokens, at least their whole blocks, never the last token of the prompt.

    In smaller blocks a few tokens of a short prompt may be hit by chance.
    """
    stem = tuple(range(shared))
    first, then = outcome(0, (*stem, *[500] * one)), outcome(1, (*stem, *[600] * other))
    assert second(first, then, block_size=block) == Bounds(shared // block * block, shared)


def test_decode_writes_all_but_the_last_sampled_token() -> None:
    """No pass computes the KV of the last token, so a next turn may not hit it."""
    first = outcome(0, range(100, 120), tuple(range(200, 213)))  # 20 + 13 tokens, of which 32 have KV
    turn = outcome(1, (*first.prompt, *first.token_ids, 300))
    assert second(first, turn) == Bounds(at_least=32, at_most=32)
    assert len(written_tokens(first)) == 32


def test_another_identity_shares_nothing() -> None:
    """Neither owed nor allowed, under one and the same name."""
    reloaded = outcome(1, PROMPT, adapter="digest-b", residence=CachePartition("tenant", 2, None))
    assert second(outcome(0, PROMPT, adapter="digest-a"), reloaded) == Bounds(0, 0)


def test_the_base_model_and_an_adapter_share_nothing() -> None:
    """In either order."""
    assert second(outcome(0, PROMPT), outcome(1, PROMPT, adapter="digest-a")) == Bounds(0, 0)
    assert second(outcome(0, PROMPT, adapter="digest-a"), outcome(1, PROMPT)) == Bounds(0, 0)


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
    """Near-equal is not equal, and none is a salt of its own."""
    assert second(outcome(0, PROMPT, salt=salts[0]), outcome(1, PROMPT, salt=salts[1])) == limits


def test_a_reload_of_the_same_content_may_hit_and_owes_nothing() -> None:
    """Equal identity: allowed. Another residence (an engine may key by load): not owed."""
    again = outcome(1, PROMPT, adapter="digest-a", residence=CachePartition("tenant", 2, None))
    assert second(outcome(0, PROMPT, adapter="digest-a"), again) == Bounds(at_least=0, at_most=39)


def test_the_same_content_under_two_names_may_hit_and_owes_nothing() -> None:
    """Names are no identity, but they are a residence."""
    other = outcome(1, PROMPT, adapter="digest-a", residence=CachePartition("other", 1, None))
    assert second(outcome(0, PROMPT, adapter="digest-a"), other) == Bounds(at_least=0, at_most=39)


def test_going_back_allows_what_was_left_from_before() -> None:
    """A, B, A: the first A's blocks are rightly hit, B's are not."""
    first = outcome(0, PROMPT, adapter="digest-a")
    between = outcome(1, (*PROMPT, *range(300, 400)), adapter="digest-b", residence=CachePartition("tenant", 2, None))
    back = outcome(2, (*PROMPT, *range(300, 400)), adapter="digest-a", residence=CachePartition("tenant", 3, None))
    assert bounds(history(first, between, back))[2] == Bounds(at_least=0, at_most=40)


def test_a_concurrent_writer_allows_and_owes_nothing() -> None:
    """What runs at the same time may or may not have written its blocks before the lookup."""
    first, beside = outcome(0, PROMPT, finished=2.0), outcome(1, PROMPT, finished=2.0)
    limits = bounds(history(first, beside))
    assert limits == {0: Bounds(0, 39), 1: Bounds(0, 39)}


def test_a_request_without_an_answer_allows_and_owes_nothing() -> None:
    """It may have been prefilled before it failed."""
    broken = outcome(0, PROMPT, (), error="HTTP 500", max_tokens=3)
    assert second(broken, outcome(1, PROMPT)) == Bounds(at_least=0, at_most=39)


def test_an_overlapped_request_owes_nothing_and_may_hit_either_version() -> None:
    """Which adapter its lookup saw is not known."""
    during = outcome(1, PROMPT, adapter="digest-a", identities=(A, B))
    assert second(outcome(0, PROMPT, adapter="digest-a"), during) == Bounds(at_least=0, at_most=39)
    assert second(outcome(0, PROMPT, adapter="digest-b"), during) == Bounds(at_least=0, at_most=39)


def test_an_overlapped_request_promises_nothing() -> None:
    """Its blocks belong to one of two versions: a later request of either may hit them, none is owed them."""
    during = outcome(0, PROMPT, adapter="digest-a", identities=(A, B))
    for load, digest in ((1, "digest-a"), (2, "digest-b")):
        after = outcome(1, PROMPT, adapter=digest, residence=CachePartition("tenant", load, None))
        assert second(during, after) == Bounds(at_least=0, at_most=39)


def test_a_change_in_between_ends_what_was_owed() -> None:
    """Even where the load number did not move, a request overlapped by a change shows that there was one."""
    first, after = outcome(0, PROMPT, adapter="digest-a"), outcome(2, PROMPT, adapter="digest-a")
    during = outcome(1, range(500, 520), adapter="digest-a", identities=(A, B))
    elsewhere = outcome(1, range(500, 520), adapter="digest-a", residence=CachePartition("other", 9, None))
    assert bounds(history(first, during, after))[2] == Bounds(at_least=0, at_most=39)
    assert bounds(history(first, elsewhere, after))[2] == Bounds(at_least=32, at_most=39)


def test_an_unknown_block_size_owes_nothing_that_can_be_named() -> None:
    """Unknown is not zero; the upper bound stands."""
    assert second(outcome(0, PROMPT), outcome(1, PROMPT), block_size=None) == Bounds(None, 39)


def test_unknown_caching_owes_nothing_that_can_be_named() -> None:
    """An engine that does not say whether it caches may not."""
    assert second(outcome(0, PROMPT), outcome(1, PROMPT), prefix_caching=None).at_least is None


def test_an_engine_without_its_cache_owes_nothing_and_may_hit_nothing() -> None:
    """This is known, and zero: a cold oracle that tells of a hit is none."""
    assert second(outcome(0, PROMPT), outcome(1, PROMPT), prefix_caching=False) == Bounds(0, 0)


@pytest.mark.parametrize(("pool", "owed"), [(6, 32), (4, 32), (3, 16), (2, None), (None, None)])
def test_what_a_pool_may_have_evicted_is_not_owed(pool: int | None, owed: int | None) -> None:
    """Twice 40 + 3 tokens take six blocks, or as they share two, four; an unknown pool may be any size."""
    assert math.ceil(43 / BLOCK) * 2 == 6
    pair = history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=pool))
    assert bounds(pair)[1] == Bounds(owed, 39)
    assert has_room(pair) is (pool == 6)


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_the_common_prefix_is_the_longest(left: list[int], right: list[int]) -> None:
    """Equal up to it, and not one token further."""
    length = common_prefix(tuple(left), tuple(right))
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]
