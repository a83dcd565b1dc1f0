"""Resets, aborts, scores, several answers and small pools change the bounds of the reference cache."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import ResponseOptions, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.history.records import Outcome, ResetRecord
from coldproof.harness.judgement.reference_cache import Bounds, bounds, has_room, lost_tokens
from coldproof.harness.judgement.request_sizes import blocks_needed, may_be_refused, never_fits

PROMPT = range(100, 140)  # two whole blocks of 16 and a half
EXPECTED, ALLOWED, EMPTY = Bounds(32, 39), Bounds(0, 39), Bounds(0, 0)
SEVERAL, SCORED = ResponseOptions(answers=2), ResponseOptions(prompt_logprobs=True)


def reset(began: float, ended: float, *, success: bool = True, scope: tuple[ResetScope, ...] = ()) -> ResetRecord:
    """Return a reset between these moments. Outcome N is sent at N and finished at N + 0.5."""
    return ResetRecord(began=began, ended=ended, success=success, scope=scope)


def last_bounds(*outcomes: Outcome, resets: tuple[ResetRecord, ...] = (), **engine: Any) -> Bounds:
    """Return the bounds of the last of these requests."""
    return bounds(history(*outcomes, resets=resets, shape=shape(**engine)))[outcomes[-1].request]


@pytest.mark.parametrize(
    ("resets", "limits"),
    [
        ((), EXPECTED),
        ((reset(0.6, 0.8),), EMPTY),
        ((reset(0.6, 0.8, success=False),), ALLOWED),
        ((reset(0.5, 1.0),), EMPTY),
        ((reset(0.3, 0.4),), ALLOWED),
        ((reset(0.3, 0.8),), ALLOWED),
        ((reset(0.6, 1.2),), ALLOWED),
        ((reset(1.2, 1.3),), ALLOWED),
        ((reset(1.6, 1.8),), EXPECTED),
        ((reset(0.6, 0.7, success=False), reset(0.8, 0.9)), EMPTY),
        ((reset(0.6, 0.7), reset(0.8, 0.9, success=False)), EMPTY),
    ],
    ids=[
        "none",
        "between",
        "refused",
        "just between",
        "during the first",
        "from the first until between",
        "from between until the second",
        "during the second",
        "after both",
        "refused, then done",
        "done, then refused",
    ],
)
def test_after_a_reset_no_hit_is_expected_and_after_a_success_none_is_allowed(
    resets: tuple[ResetRecord, ...], limits: Bounds
) -> None:
    """What a request writes while the cache is reset may survive the reset."""
    assert last_bounds(outcome(0, PROMPT), outcome(1, PROMPT), resets=resets) == limits


@pytest.mark.parametrize(
    ("scope", "success", "limits"),
    [
        ((), True, Bounds(0, 40)),
        ((ResetScope.RUNNING,), True, Bounds(0, 40)),
        ((ResetScope.SECOND_TIER,), False, Bounds(0, 40)),
        ((ResetScope.SECOND_TIER,), True, EMPTY),
        ((ResetScope.RUNNING, ResetScope.SECOND_TIER), True, EMPTY),
    ],
)
def test_a_second_tier_is_empty_only_after_a_reset_that_covers_it(
    scope: tuple[ResetScope, ...], success: bool, limits: Bounds
) -> None:
    """What the pool loses comes back from the tier, unless a reset covered it."""
    made = (outcome(0, PROMPT), outcome(1, PROMPT))
    assert last_bounds(*made, resets=(reset(0.6, 0.8, success=success, scope=scope),), second_tier=True) == limits


def test_what_is_written_after_a_reset_must_be_hit_again() -> None:
    """What was written before it is not expected, however long its prefix."""
    long = range(100, 180)
    first, again, then = outcome(0, long), outcome(1, PROMPT), outcome(2, long)
    assert last_bounds(first, again, then, resets=(reset(0.6, 0.8),)) == Bounds(at_least=32, at_most=40)


def test_blocks_of_a_request_across_a_reset_need_not_be_hit() -> None:
    """It may have written before the reset, after it, or both."""
    across = outcome(0, PROMPT, finished=2.0)
    assert last_bounds(across, outcome(3, PROMPT), resets=(reset(1.0, 1.2),)) == ALLOWED


@pytest.mark.parametrize("stage", list(Stage))
def test_blocks_of_an_aborted_request_may_be_hit_and_need_not(stage: Stage) -> None:
    """At any stage, it is unknown how much the engine has computed."""
    cut = outcome(0, PROMPT, (7, 8, 9), aborted=stage, cached_tokens=None, finish_reason=None)
    assert last_bounds(cut, outcome(1, PROMPT)) == ALLOWED
    assert last_bounds(cut, outcome(1, (*PROMPT, 7, 8, 9, 10))) == Bounds(0, 42)


def test_an_aborted_request_does_not_lower_an_earlier_bound() -> None:
    """Blocks of an answered request before it must still be hit."""
    cut = outcome(1, PROMPT, aborted=Stage.PREFILL, cached_tokens=None)
    assert last_bounds(outcome(0, PROMPT), cut, outcome(2, PROMPT)) == EXPECTED


@pytest.mark.parametrize(("tokens", "least"), [((), 0), ((7,), 32)])
def test_a_request_that_the_engine_aborts_before_its_first_token_need_not_hit(
    tokens: tuple[int, ...], least: int
) -> None:
    """A pause may abort it while it waits. It was never looked up, and the engine reports no hit."""
    cut = outcome(1, PROMPT, tokens, aborted=Stage.UNSEEN if not tokens else Stage.DECODE, cached_tokens=0)
    assert last_bounds(outcome(0, PROMPT), cut).at_least == least


def test_several_answers_share_their_prompt_among_themselves() -> None:
    """All answers but the first may hit a cold prompt, and need not. Later requests must hit as usual."""
    assert last_bounds(outcome(0, PROMPT, options=SEVERAL)) == ALLOWED
    assert last_bounds(outcome(0, PROMPT), outcome(1, PROMPT, options=SEVERAL)) == ALLOWED
    assert last_bounds(outcome(0, PROMPT, options=SEVERAL), outcome(1, PROMPT)) == EXPECTED


def test_a_prompt_with_scores_may_hit_and_be_hit_and_need_not() -> None:
    """Engines may bypass the cache for them, but a hit is allowed."""
    assert last_bounds(outcome(0, PROMPT), outcome(1, PROMPT, options=SCORED)) == ALLOWED
    assert last_bounds(outcome(0, PROMPT, options=SCORED), outcome(1, PROMPT)) == ALLOWED


@pytest.mark.parametrize(
    "response_options", [ResponseOptions(stop=("a",)), ResponseOptions(pattern="[ab]"), ResponseOptions(logprobs=True)]
)
def test_other_response_options_have_the_bounds_of_plain_requests(response_options: ResponseOptions) -> None:
    """These options change only the answer."""
    assert (
        last_bounds(outcome(0, PROMPT, options=response_options), outcome(1, PROMPT, options=response_options))
        == EXPECTED
    )


def test_with_sparse_layers_only_a_repeated_prompt_must_hit() -> None:
    """A sliding window frees the blocks before it. The upper bound is the same."""
    longer, known = (*PROMPT, 7, 8, 9), {"uniform": False, "groups": (GroupShape(16), GroupShape(16))}
    assert last_bounds(outcome(0, PROMPT), outcome(1, PROMPT), **known) == EXPECTED
    assert last_bounds(outcome(0, PROMPT), outcome(1, longer), **known) == Bounds(0, 42)
    assert last_bounds(outcome(0, PROMPT), outcome(1, PROMPT), uniform=False).at_least is None
    assert last_bounds(outcome(0, PROMPT), outcome(1, longer)) == Bounds(32, 42)


@pytest.mark.parametrize(
    ("answers", "pool", "room"), [(1, 6, True), (1, 5, False), (3, 12, True), (3, 11, False)], ids=str
)
def test_each_of_several_answers_needs_room(answers: int, pool: int, room: bool) -> None:
    """Each may need three blocks of its own, and blocks that these evict need not be hit."""
    pair = history(
        outcome(0, PROMPT, options=ResponseOptions(answers=answers)), outcome(1, PROMPT), shape=shape(pool_blocks=pool)
    )
    assert has_room(pair) is room


@pytest.mark.parametrize(("pool", "room"), [(24, True), (23, False)])
def test_room_is_what_all_groups_need_together(pool: int, room: bool) -> None:
    """Two requests need three blocks in one group, and at most three small ones at a time in another, which has a
    window. It is not known which blocks of that the engine keeps, so that all six of a request may stay.
    """
    groups = (GroupShape(16), GroupShape(8, most_blocks=3))
    pair = history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=pool, uniform=False, groups=groups))
    assert has_room(pair) is room


OTHER = range(500, 540)
ABORTED: dict[str, Any] = {"aborted": Stage.DECODE, "cached_tokens": None}


@pytest.mark.parametrize(
    ("before", "between", "pool", "least"),
    [
        ((), (), 4, 32),
        ((), (), 3, 16),
        ((), (), 2, None),
        ((), ({},), 8, 32),
        ((), ({},), 7, 16),
        ((), ({},), 6, None),
        ((), ({}, {}), 10, 32),
        ((), ({}, {}), 9, 16),
        ((), ({}, {"options": SCORED}), 12, 32),
        ((), ({}, {"options": SCORED}), 11, 16),
        (({}, {}), (), 4, 32),
        (({}, {}), (), 3, 16),
        ((ABORTED,), (), 8, 32),
        ((ABORTED,), (), 6, None),
        (({"options": ResponseOptions(stop=("a",))},), (), 8, 32),
        (({"options": ResponseOptions(stop=("a",))},), (), 6, None),
        ((), ({"options": SEVERAL},), 12, 32),
        ((), ({"options": SEVERAL},), 10, None),
    ],
)
def test_in_a_small_pool_what_was_written_last_must_be_hit(
    before: tuple[dict[str, Any], ...], between: tuple[dict[str, Any], ...], pool: int, least: int | None
) -> None:
    """It must be hit from its start on.

    Each request needs three blocks, or four with a step ahead, of which two are shared with an equal prompt whose KV is
    not computed again. What ran before is evicted first, unless it may still run after a client disconnect.
    """
    kinds = [*((OTHER, more) for more in before), (PROMPT, {}), *((OTHER, more) for more in between), (PROMPT, {})]
    early = outcome(0, range(900, 1500))  # far more than the pool holds
    made = [outcome(i, tokens, **more) for i, (tokens, more) in enumerate(kinds, 1)]
    assert last_bounds(early, *made, pool_blocks=pool).at_least == least


@pytest.mark.parametrize(
    "engine",
    [{"second_tier": True}, {"uniform": False, "groups": (GroupShape(16), GroupShape(16))}, {"pool_blocks": None}],
)
def test_in_a_small_pool_with_other_eviction_no_hit_is_expected(engine: dict[str, Any]) -> None:
    """The engine has a second tier, layers that free blocks early, or an unknown pool."""
    made = (outcome(0, range(900, 1500)), outcome(1, PROMPT), outcome(2, PROMPT))
    assert last_bounds(*made, **{"pool_blocks": 20, **engine}).at_least is None
    assert last_bounds(*made, pool_blocks=20).at_least == 32


def test_a_request_in_the_same_burst_may_take_the_blocks_of_the_first() -> None:
    """Only the engine knows which request of a burst ended last."""
    pair = (outcome(0, PROMPT), outcome(1, OTHER, step=0, sent=0.0, finished=0.4))
    again = outcome(2, PROMPT, step=1)
    early = outcome(9, range(900, 1500), step=2, sent=5.0, finished=6.0)
    assert bounds(history(*pair, again, early, shape=shape(pool_blocks=6)))[2].at_least is None
    assert bounds(history(*pair, again, early, shape=shape(pool_blocks=8)))[2].at_least == 32


def test_a_preemption_takes_blocks_more_than_once() -> None:
    """No block is expected to be left from its step on."""
    made = (outcome(0, PROMPT), outcome(1, PROMPT), outcome(2, range(900, 1500)))
    for step, least in ((0, None), (1, None), (2, 32)):
        steps = [
            record(i, after=Metrics(preemptions=float(i >= step)), before=Metrics(preemptions=float(i > step)))
            for i in range(3)
        ]
        seen = history(*made, shape=shape(pool_blocks=6), steps=tuple(steps))
        assert bounds(seen)[1].at_least == least


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_are_whole(tokens: int, blocks: int) -> None:
    """The number is unknown if the block size is."""
    assert blocks_needed(history(), tokens) == blocks
    assert blocks_needed(history(shape=shape(block_size=None)), tokens) is None


@pytest.mark.parametrize(
    ("length", "answer", "engine", "never", "maybe"),
    [
        (60, 4, {"max_model_tokens": 64}, False, False),
        (60, 5, {"max_model_tokens": 64}, False, True),
        (63, 1, {"max_model_tokens": 64}, False, False),
        (64, 1, {"max_model_tokens": 64}, True, True),
        (200, 1, {"max_model_tokens": 64}, True, True),
        (60, 4, {"pool_blocks": 4}, False, False),
        (60, 5, {"pool_blocks": 4}, False, True),
        (64, 1, {"pool_blocks": 4}, True, True),
        (64, 1, {"pool_blocks": 4, "block_size": None}, False, False),
        (64, 1, {"pool_blocks": None}, False, False),
        (64, 1, {"pool_blocks": None, "max_model_tokens": 64}, True, True),
    ],
)
def test_what_never_fits_is_known_by_the_models_length_and_the_pool(
    length: int, answer: int, engine: dict[str, Any], never: bool, maybe: bool
) -> None:
    """A prompt must fit with one token of its answer, and may be refused if all of its answer does not fit.

    Unknown is no limit.
    """
    one = outcome(0, range(length), max_tokens=answer)
    seen = history(one, shape=shape(**engine))
    assert (never_fits(seen, one), may_be_refused(seen, one)) == (never, maybe)


@pytest.mark.parametrize(("cached", "lost"), [(32, 0), (16, 16), (0, 32), (39, 0), (None, 0)])
@pytest.mark.parametrize("pool", [5, 1000], ids=["no room", "room"])
def test_lost_tokens_are_what_a_pool_with_room_must_hit(cached: int | None, lost: int, pool: int) -> None:
    """This holds with and without room. With an unknown count, nothing is lost."""
    then = outcome(1, PROMPT, cached_tokens=cached)
    assert lost_tokens(history(outcome(0, PROMPT), then, shape=shape(pool_blocks=pool)), then) == lost


def test_nothing_is_lost_if_no_hit_is_expected() -> None:
    """The block size is unknown, or there was a reset in between."""
    then = outcome(1, PROMPT)
    assert lost_tokens(history(outcome(0, PROMPT), then, shape=shape(block_size=None)), then) == 0
    assert lost_tokens(history(outcome(0, PROMPT), then, resets=(reset(0.6, 0.8),)), then) == 0
