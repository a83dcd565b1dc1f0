"""A second tier must still have what the pool has lost."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.reference_cache import bounds

PROMPT = range(100, 180)  # five blocks of 16
FIRST, OTHER, AGAIN = outcome(0, PROMPT), outcome(1, range(1000, 1080)), outcome(2, PROMPT)
ROOM = 64  # blocks


def expected_hit(*sent: Outcome, tier: int | None = ROOM, **changes: Any) -> int | None:
    """Return the minimum expected hit of the last request, with a pool that has room for one of them."""
    engine = shape(pool_blocks=6, second_tier=True, tier_blocks=tier)
    return bounds(history(*sent, shape=engine, **changes))[sent[-1].request].at_least


def test_an_earlier_prompt_must_be_hit() -> None:
    """The hit has whole blocks of the prompt without its last token. A tier may leave out the answer."""
    assert expected_hit(FIRST, OTHER, AGAIN) == 64
    assert expected_hit(FIRST, OTHER, outcome(2, (*PROMPT, 7, 8, *range(300, 320)))) == 80
    assert expected_hit(FIRST, OTHER, outcome(2, (*range(100, 150), *range(2000, 2030)))) == 48


@pytest.mark.parametrize(
    ("sent", "tier"),
    [
        ((FIRST, OTHER, AGAIN), None),
        ((FIRST, OTHER, AGAIN), 17),
        ((FIRST, outcome(1, PROMPT)), ROOM),
        ((FIRST, outcome(1, range(1000, 1080), finish_reason=None, aborted="client"), AGAIN), ROOM),
    ],
    ids=["unknown tier", "without room for all", "no request in between", "after an abort"],
)
def test_no_hit_is_expected(sent: tuple[Outcome, ...], tier: int | None) -> None:
    """What is stored in the meantime, or perhaps never, cannot be expected."""
    assert expected_hit(*sent, tier=tier) is None


@pytest.mark.parametrize(("in_order", "expected"), [(True, 64), (False, None)])
def test_room_alone_keeps_nothing_where_a_tier_puts_older_blocks_behind_newer_ones(
    in_order: bool, expected: int | None
) -> None:
    """What was in the pool before this history may outlive it (vLLM's `lazy_offload`)."""
    engine = shape(pool_blocks=40, second_tier=True, evicts_oldest=in_order)
    assert bounds(history(FIRST, OTHER, AGAIN, shape=engine))[2].at_least == expected


@pytest.mark.parametrize("after", [Metrics(hit_tokens=0.0, preemptions=1.0), Metrics(hit_tokens=0.0, failed_loads=1.0)])
def test_no_hit_is_expected_after_a_preemption_or_a_failed_load(after: Metrics) -> None:
    """The blocks of a preempted request may be freed before they are stored."""
    before = Metrics(hit_tokens=0.0, preemptions=0.0, failed_loads=0.0)
    steps = (record(0), record(1, before=before, after=after), record(2))
    assert expected_hit(FIRST, OTHER, AGAIN, steps=steps) is None


def test_a_miss_is_lost_reuse_and_names_the_tier() -> None:
    """The tier is named because the pool had no room."""
    engine = shape(pool_blocks=6, second_tier=True, tier_blocks=ROOM)
    (finding,) = check_bounds(history(FIRST, OTHER, AGAIN, shape=engine))
    assert finding.sentence == (
        "Request 2 hit 0 cached tokens, but an earlier request had left 64 in the cache, "
        "and the second tier had room to keep them."
    )


@pytest.mark.parametrize(("answered", "keeps", "least"), [(12, True, 64), (13, True, 80), (13, False, 64)])
def test_a_tier_that_keeps_answers_has_the_blocks_that_they_fill(answered: int, keeps: bool, least: int) -> None:
    """But for the last token of an answer, which no step computes."""
    asked, answer = tuple(PROMPT[:68]), tuple(range(7, 7 + answered))
    engine = shape(pool_blocks=9, second_tier=True, tier_blocks=ROOM, tier_keeps_answers=keeps)
    turns = (outcome(0, asked, answer), OTHER, outcome(2, (*asked, *answer, *range(300, 320))))
    assert bounds(history(*turns, shape=engine))[2].at_least == least


@pytest.mark.parametrize(("engine", "most"), [({}, 79), ({"second_tier": True}, 80)])
def test_a_tier_may_load_the_last_token(engine: dict[str, bool], most: int) -> None:
    """The pool alone must leave it out, because its logits are needed."""
    assert bounds(history(FIRST, AGAIN, shape=shape(**engine)))[2].at_most == most
