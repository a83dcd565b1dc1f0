"""Where layers with windows and states must hit, and how much room that takes."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import BLOCK, history, outcome, shape

from coldproof.adapters.protocol.requests import Stage
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.reference_cache import bounds, has_room, junctions

PRELUDE = range(10 * BLOCK + 3)  # ten blocks and three tokens
WINDOW = GroupShape(8, most_blocks=6, tail=2)
GROUPS = (GroupShape(BLOCK), WINDOW)
INTERVAL = 4 * BLOCK


def turn(number: int, length: int = 5 * BLOCK, **changes: Any) -> Outcome:
    """Return a conversation that continues the prelude with its own tokens."""
    start = 1000 * (number + 1)
    return outcome(number, (*PRELUDE, *range(start, start + length)), **changes)


def expected_hits(*made: Outcome, kept_every: int | None = 0, **changes: Any) -> list[int | None]:
    """Return the minimum expected hit of each request on an engine with one group of windows."""
    facts = {"uniform": False, "groups": GROUPS, "kept_every": kept_every, **changes}
    limits = bounds(history(*made, shape=shape(**facts)))
    return [limits[one.request].at_least for one in made]


@pytest.mark.parametrize(
    ("kept_every", "second"), [(0, 0), (INTERVAL, 8 * BLOCK), (BLOCK, 10 * BLOCK), (None, 0)], ids=str
)
def test_the_second_prompt_with_a_prelude_must_hit_up_to_the_interval(kept_every: int | None, second: int) -> None:
    """It must hit up to the last multiple of the interval: nothing with 0, and all with an interval of a block."""
    assert expected_hits(turn(0), turn(1), kept_every=kept_every) == [0, second]


@pytest.mark.parametrize("kept_every", [0, INTERVAL])
def test_the_third_prompt_with_a_prelude_must_hit_up_to_the_junction(kept_every: int) -> None:
    """The second one has found where they diverge, unless it was sent at the same time as the first."""
    assert expected_hits(turn(0), turn(1), turn(2), kept_every=kept_every)[-1] == 10 * BLOCK
    together = turn(1, sent=0.1, finished=0.4)
    last = expected_hits(turn(0), together, turn(2), kept_every=kept_every)[-1]
    assert last == (8 * BLOCK if kept_every else 0)


def test_a_junction_is_uncertain_if_more_may_have_been_cached_than_must() -> None:
    """A request beside the second one may have had a longer prefix in common with it."""
    first, second = turn(0), turn(1)
    beside = outcome(9, (*second.prompt[:-3], 1, 2, 3), sent=0.9, finished=1.6)
    for made, found in (((first, second), 10 * BLOCK), ((first, second, beside), None)):
        engine = shape(uniform=False, groups=GROUPS, kept_every=0)
        assert junctions(history(*made, shape=engine)).get(second.request) == found


def test_a_longer_prompt_must_hit_up_to_the_replay_boundary() -> None:
    """The boundary is the last whole block before the last token. With one token less in common, no hit is expected."""
    first = outcome(0, range(6 * BLOCK))
    for same, at_least in ((6 * BLOCK, 5 * BLOCK), (5 * BLOCK, 5 * BLOCK), (5 * BLOCK - 1, 0)):
        assert expected_hits(first, outcome(1, (*range(same), 7, 7, 7)))[-1] == at_least


def test_a_prompt_that_ends_at_the_boundary_need_not_hit() -> None:
    """Its last token is computed, so its hit would end a block earlier, where no layer keeps its state."""
    assert expected_hits(outcome(0, range(6 * BLOCK)), outcome(1, range(5 * BLOCK)))[-1] == 0


@pytest.mark.parametrize("kept_every", [None, 0, BLOCK])
def test_a_request_that_loads_its_prompt_leaves_nothing_before_the_end_of_the_load(kept_every: int | None) -> None:
    """Its windows have blocks for the end of the load alone, here the end of the prompt: after it, no hit is expected.

    Seen on vLLM 0.32 with OffloadingConnector: 1,791 of 1,792 tokens were loaded, and the same prompt then hit 0 in the
    pool.
    """
    for loaded, at_least in ((6 * BLOCK - 1, 0), (5 * BLOCK, 5 * BLOCK)):
        first = outcome(0, range(6 * BLOCK), cached_tokens=loaded)
        hits = expected_hits(first, outcome(1, range(6 * BLOCK)), kept_every=kept_every, second_tier=True)
        assert hits[-1] == at_least


def test_sessions_need_not_hit() -> None:
    """A session may have passed a boundary during decode."""
    session = {"session": "s"}
    assert expected_hits(turn(0, **session), turn(1, **session), turn(2)) == [0, 0, 0]
    assert expected_hits(turn(0), turn(1), turn(2, **session))[-1] == 0


KEPT = 2 * (15 + 2 * 2) + 6  # 15 blocks each with an answer and a step ahead, two tails; one request's windows


@pytest.mark.parametrize(("pool", "room"), [(KEPT, True), (KEPT - 1, False)])
def test_room_is_what_is_kept_and_what_one_request_holds(pool: int, room: bool) -> None:
    """Blocks that a window has left are used again first."""
    engine = shape(uniform=False, groups=GROUPS, kept_every=0, pool_blocks=pool)
    pair = history(turn(0, length=4 * BLOCK), turn(1, length=4 * BLOCK), shape=engine)
    assert has_room(pair) is room


def test_what_must_hit_takes_no_room_again() -> None:
    """Nine more conversations of one prelude need only their own blocks."""
    engine = shape(uniform=False, groups=GROUPS, kept_every=0, pool_blocks=KEPT + 9 * (5 + 4))
    assert has_room(history(*(turn(i, length=4 * BLOCK) for i in range(11)), shape=engine))
    without = shape(uniform=False, groups=GROUPS, kept_every=0, pool_blocks=KEPT + 9 * (5 + 4) - 1)
    assert not has_room(history(*(turn(i, length=4 * BLOCK) for i in range(11)), shape=without))


def test_dense_layers_need_room_for_each_block() -> None:
    """A tail of two blocks of 8 tokens for each block of 16 is every block."""
    for pool, room in ((45 + 6, True), (45 + 5, False)):
        engine = shape(uniform=False, groups=GROUPS, kept_every=BLOCK, pool_blocks=pool)
        assert has_room(history(turn(0, length=4 * BLOCK), shape=engine)) is room


def test_a_request_that_may_still_run_holds_its_window_beside_others() -> None:
    """An abort may reach the engine late."""
    aborted = turn(1, length=4 * BLOCK, finish_reason=None, aborted=Stage.DECODE, tokens=())
    engine = shape(uniform=False, groups=GROUPS, kept_every=0, pool_blocks=KEPT)
    assert not has_room(history(turn(0, length=4 * BLOCK), aborted, shape=engine))
