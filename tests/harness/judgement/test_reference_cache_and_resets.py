"""What resets, aborts, scores, several answers and a pool too small do to the reference cache's bounds."""

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
OWED, FREE, EMPTY = Bounds(32, 39), Bounds(0, 39), Bounds(0, 0)
SEVERAL, SCORED = ResponseOptions(answers=2), ResponseOptions(prompt_logprobs=True)


def reset(began: float, ended: float, *, success: bool = True, scope: tuple[ResetScope, ...] = ()) -> ResetRecord:
    """A reset between these moments; outcome N is sent at N and finished at N + 0.5."""
    return ResetRecord(began=began, ended=ended, success=success, scope=scope)


def last(*outcomes: Outcome, resets: tuple[ResetRecord, ...] = (), **engine: Any) -> Bounds:
    """The bounds of the last of these requests."""
    return bounds(history(*outcomes, resets=resets, shape=shape(**engine)))[outcomes[-1].request]


@pytest.mark.parametrize(
    ("resets", "limits"),
    [
        ((), OWED),
        ((reset(0.6, 0.8),), EMPTY),
        ((reset(0.6, 0.8, success=False),), FREE),
        ((reset(0.5, 1.0),), EMPTY),
        ((reset(0.3, 0.4),), FREE),
        ((reset(0.3, 0.8),), FREE),
        ((reset(0.6, 1.2),), FREE),
        ((reset(1.2, 1.3),), FREE),
        ((reset(1.6, 1.8),), OWED),
        ((reset(0.6, 0.7, success=False), reset(0.8, 0.9)), EMPTY),
        ((reset(0.6, 0.7), reset(0.8, 0.9, success=False)), EMPTY),
    ],
    ids=[
        "none",
        "between",
        "refused",
        "just between",
        "while the first ran",
        "from the first's life on",
        "into the second's life",
        "while the second ran",
        "after both",
        "refused, then done",
        "done, then refused",
    ],
)
def test_a_reset_leaves_nothing_to_hit_if_it_succeeded_and_nothing_to_owe_at_all(
    resets: tuple[ResetRecord, ...], limits: Bounds
) -> None:
    """What a request writes while the cache is reset under it may outlive the reset."""
    assert last(outcome(0, PROMPT), outcome(1, PROMPT), resets=resets) == limits


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
    """What the pool loses comes back from there; what its own reset removed may not."""
    made = (outcome(0, PROMPT), outcome(1, PROMPT))
    assert last(*made, resets=(reset(0.6, 0.8, success=success, scope=scope),), second_tier=True) == limits


def test_what_is_written_after_a_reset_is_owed_again() -> None:
    """And what was written before it is not, however long its prefix."""
    long = range(100, 180)
    first, again, then = outcome(0, long), outcome(1, PROMPT), outcome(2, long)
    assert last(first, again, then, resets=(reset(0.6, 0.8),)) == Bounds(at_least=32, at_most=40)


def test_a_request_that_crossed_a_reset_promises_nothing() -> None:
    """It may have written before, behind, or both."""
    across = outcome(0, PROMPT, finished=2.0)
    assert last(across, outcome(3, PROMPT), resets=(reset(1.0, 1.2),)) == FREE


@pytest.mark.parametrize("stage", list(Stage))
def test_an_aborted_request_promises_nothing_and_allows_what_it_may_have_computed(stage: Stage) -> None:
    """Whatever its stage: how far the engine came, nobody knows for sure."""
    cut = outcome(0, PROMPT, (7, 8, 9), aborted=stage, cached_tokens=None, finish_reason=None)
    assert last(cut, outcome(1, PROMPT)) == FREE
    assert last(cut, outcome(1, (*PROMPT, 7, 8, 9, 10))) == Bounds(0, 42)


def test_an_aborted_request_hides_no_earlier_promise() -> None:
    """Who was answered before it still is owed for."""
    cut = outcome(1, PROMPT, aborted=Stage.PREFILL, cached_tokens=None)
    assert last(outcome(0, PROMPT), cut, outcome(2, PROMPT)) == OWED


@pytest.mark.parametrize(("tokens", "owed"), [((), 0), ((7,), 32)])
def test_a_request_that_the_engine_aborts_before_its_first_token_owes_nothing(
    tokens: tuple[int, ...], owed: int
) -> None:
    """A pause may abort it while it waits: it was never looked up, and the engine reports no hit."""
    cut = outcome(1, PROMPT, tokens, aborted=Stage.UNSEEN if not tokens else Stage.DECODE, cached_tokens=0)
    assert last(outcome(0, PROMPT), cut).at_least == owed


def test_several_answers_share_their_prompt_among_themselves() -> None:
    """A cold prompt may be hit by all but the first of them, and nothing is owed for it; later ones owe as ever."""
    assert last(outcome(0, PROMPT, surface=SEVERAL)) == FREE
    assert last(outcome(0, PROMPT), outcome(1, PROMPT, surface=SEVERAL)) == FREE
    assert last(outcome(0, PROMPT, surface=SEVERAL), outcome(1, PROMPT)) == OWED


def test_scores_of_a_prompt_neither_owe_nor_promise_a_hit() -> None:
    """Engines may pass the cache by for them; that they hit it is allowed."""
    assert last(outcome(0, PROMPT), outcome(1, PROMPT, surface=SCORED)) == FREE
    assert last(outcome(0, PROMPT, surface=SCORED), outcome(1, PROMPT)) == FREE


@pytest.mark.parametrize(
    "surface", [ResponseOptions(stop=("a",)), ResponseOptions(pattern="[ab]"), ResponseOptions(logprobs=True)]
)
def test_other_surfaces_owe_and_promise_as_plain_requests_do(surface: ResponseOptions) -> None:
    """What they ask for is about the answer."""
    assert last(outcome(0, PROMPT, surface=surface), outcome(1, PROMPT, surface=surface)) == OWED


def test_layers_that_keep_blocks_sparsely_owe_only_a_prompt_sent_again() -> None:
    """A sliding window frees what lies behind it; the upper bound is the same."""
    longer, known = (*PROMPT, 7, 8, 9), {"uniform": False, "groups": (GroupShape(16), GroupShape(16))}
    assert last(outcome(0, PROMPT), outcome(1, PROMPT), **known) == OWED
    assert last(outcome(0, PROMPT), outcome(1, longer), **known) == Bounds(0, 42)
    assert last(outcome(0, PROMPT), outcome(1, PROMPT), uniform=False).at_least is None
    assert last(outcome(0, PROMPT), outcome(1, longer)) == Bounds(32, 42)


@pytest.mark.parametrize(
    ("answers", "pool", "room"), [(1, 6, True), (1, 5, False), (3, 12, True), (3, 11, False)], ids=str
)
def test_each_of_several_answers_needs_room(answers: int, pool: int, room: bool) -> None:
    """Each may come to three blocks of its own: what they pushed out is not owed."""
    pair = history(
        outcome(0, PROMPT, surface=ResponseOptions(answers=answers)), outcome(1, PROMPT), shape=shape(pool_blocks=pool)
    )
    assert has_room(pair) is room


@pytest.mark.parametrize(("pool", "room"), [(12, True), (11, False)])
def test_room_is_what_all_groups_need_together(pool: int, room: bool) -> None:
    """Two requests of three blocks in one group, and of no more than three small ones in another, with a window."""
    groups = (GroupShape(16), GroupShape(8, most_blocks=3))
    pair = history(outcome(0, PROMPT), outcome(1, PROMPT), shape=shape(pool_blocks=pool, uniform=False, groups=groups))
    assert has_room(pair) is room


OTHER = range(500, 540)
ABORTED: dict[str, Any] = {"aborted": Stage.DECODE, "cached_tokens": None}


@pytest.mark.parametrize(
    ("before", "between", "pool", "owed"),
    [
        ((), (), 4, 32),
        ((), (), 3, 16),
        ((), (), 2, None),
        ((), ({},), 8, 32),
        ((), ({},), 7, 16),
        ((), ({},), 6, None),
        ((), ({}, {}), 10, 32),
        ((), ({}, {}), 9, 16),
        ((), ({}, {"surface": SCORED}), 12, 32),
        ((), ({}, {"surface": SCORED}), 11, 16),
        (({}, {}), (), 4, 32),
        (({}, {}), (), 3, 16),
        ((ABORTED,), (), 8, 32),
        ((ABORTED,), (), 6, None),
        (({"surface": ResponseOptions(stop=("a",))},), (), 8, 32),
        (({"surface": ResponseOptions(stop=("a",))},), (), 6, None),
        ((), ({"surface": SEVERAL},), 12, 32),
        ((), ({"surface": SEVERAL},), 10, None),
    ],
)
def test_a_pool_too_small_for_all_still_owes_what_was_written_last(
    before: tuple[dict[str, Any], ...], between: tuple[dict[str, Any], ...], pool: int, owed: int | None
) -> None:
    """From its start on. Three blocks each, four with a step ahead, of which two are shared with an equal prompt whose
    KV is not computed anew; what ran before is evicted first, unless it may run on behind its client's back.
    """
    kinds = [*((OTHER, more) for more in before), (PROMPT, {}), *((OTHER, more) for more in between), (PROMPT, {})]
    early = outcome(0, range(900, 1500))  # far more than the pool holds
    made = [outcome(i, tokens, **more) for i, (tokens, more) in enumerate(kinds, 1)]
    assert last(early, *made, pool_blocks=pool).at_least == owed


@pytest.mark.parametrize(
    "engine",
    [{"second_tier": True}, {"uniform": False, "groups": (GroupShape(16), GroupShape(16))}, {"pool_blocks": None}],
)
def test_where_blocks_move_otherwise_a_pool_too_small_owes_nothing(engine: dict[str, Any]) -> None:
    """A second tier, layers that let go of blocks, an unknown pool."""
    made = (outcome(0, range(900, 1500)), outcome(1, PROMPT), outcome(2, PROMPT))
    assert last(*made, **{"pool_blocks": 20, **engine}).at_least is None
    assert last(*made, pool_blocks=20).at_least == 32


def test_whoever_was_asked_together_with_the_first_may_take_its_blocks() -> None:
    """Which of a burst ended last is only known to the engine."""
    pair = (outcome(0, PROMPT), outcome(1, OTHER, step=0, sent=0.0, finished=0.4))
    again = outcome(2, PROMPT, step=1)
    early = outcome(9, range(900, 1500), step=2, sent=5.0, finished=6.0)
    assert bounds(history(*pair, again, early, shape=shape(pool_blocks=6)))[2].at_least is None
    assert bounds(history(*pair, again, early, shape=shape(pool_blocks=8)))[2].at_least == 32


def test_a_preemption_takes_blocks_more_than_once() -> None:
    """So nothing is known to be left from its step on."""
    made = (outcome(0, PROMPT), outcome(1, PROMPT), outcome(2, range(900, 1500)))
    for step, owed in ((0, None), (1, None), (2, 32)):
        steps = [
            record(i, after=Metrics(preemptions=float(i >= step)), before=Metrics(preemptions=float(i > step)))
            for i in range(3)
        ]
        seen = history(*made, shape=shape(pool_blocks=6), steps=tuple(steps))
        assert bounds(seen)[1].at_least == owed


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_are_whole(tokens: int, blocks: int) -> None:
    """And unknown where their size is."""
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
    """A prompt with one token to answer; with all of its answer it may be refused. Unknown is no limit."""
    one = outcome(0, range(length), max_tokens=answer)
    seen = history(one, shape=shape(**engine))
    assert (never_fits(seen, one), may_be_refused(seen, one)) == (never, maybe)


@pytest.mark.parametrize(("cached", "lost"), [(32, 0), (16, 16), (0, 32), (39, 0), (None, 0)])
@pytest.mark.parametrize("pool", [5, 1000], ids=["no room", "room"])
def test_lost_tokens_are_what_would_have_been_owed_in_a_pool_with_room(
    cached: int | None, lost: int, pool: int
) -> None:
    """Whether there was room or not; an unknown count has lost nothing."""
    then = outcome(1, PROMPT, cached_tokens=cached)
    assert lost_tokens(history(outcome(0, PROMPT), then, shape=shape(pool_blocks=pool)), then) == lost


def test_nothing_is_lost_where_nothing_is_known_to_be_owed() -> None:
    """An unknown block size, or a reset in between."""
    then = outcome(1, PROMPT)
    assert lost_tokens(history(outcome(0, PROMPT), then, shape=shape(block_size=None)), then) == 0
    assert lost_tokens(history(outcome(0, PROMPT), then, resets=(reset(0.6, 0.8),)), then) == 0
