"""Blocks that are shared buy concurrency; nothing is said where nothing is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, history, outcome, record, shape, tokens

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Token
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.features.pressure.checks import ENOUGH_ROOM, ENOUGH_SAMPLES, check_concurrency
from coldproof.harness.history.records import CachePartition, Outcome, QueueSample
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Step, Workload

LONG = range(100, 180)  # five whole blocks of 16
CROWD = 8


def look(running: float | None, waiting: float | None, at: float = 0.5) -> QueueSample:
    """What was seen of the queue."""
    return QueueSample(at=at, running=running, waiting=waiting, pool_usage=0.9)


def crowd(count: int = CROWD, **changes: Any) -> list[Outcome]:
    """So many times the same long prompt in one burst, each of them to decode four tokens into one new block."""
    return [outcome(i, LONG, (1, 2, 3, 4), **{"step": 0, "sent": 0.0, **changes}) for i in range(count)]


def checked(
    *looks: QueueSample, outcomes: list[Outcome] | None = None, step: Step | None = None, **engine: Any
) -> list[Finding]:
    """What is said of a crowd whose queue was seen like this. The pool has 5 shared blocks and room for 8 more."""
    asked = crowd() if outcomes is None else outcomes
    seen = history(
        *asked,
        workload=Workload((step or burst(*[ask()] * len(asked)),)),
        steps=(record(0, queue=looks),),
        shape=shape(**{"pool_blocks": 13, **engine}),
    )
    return check_concurrency(seen)


ONE_BY_ONE = (look(1, 7), look(1, 6), look(1, 5))


def test_a_crowd_that_runs_one_by_one_is_lost_reuse() -> None:
    """Blocks that are shared need to be there once: the room is there, and who waits is not let in."""
    (found,) = checked(*ONE_BY_ONE)
    assert (found.checker, found.failure_class, found.request) == ("concurrency", FailureClass.LOST_REUSE, None)
    assert "room for 8 at a time; in 3 samples with requests waiting, at most 1 ran" in found.sentence


@pytest.mark.parametrize(("most", "slow"), [(1, True), (3, True), (4, False), (8, False)])
def test_half_of_what_has_room_is_enough(most: int, slow: bool) -> None:
    """At any one look: the first may still be computing what all of them share."""
    assert bool(checked(look(1, 7), look(most, 4), look(1, 1))) is slow


@pytest.mark.parametrize(
    "looks",
    [
        (),
        ONE_BY_ONE[: ENOUGH_SAMPLES - 1],
        (*ONE_BY_ONE[: ENOUGH_SAMPLES - 1], look(1, 0), look(1, 0)),
        (*ONE_BY_ONE[: ENOUGH_SAMPLES - 1], look(1, None), look(None, 5)),
    ],
    ids=["none", "too few", "too few that saw a queue", "too few that saw all"],
)
def test_too_few_samples_give_no_result(looks: tuple[QueueSample, ...]) -> None:
    """Where nobody waits, nobody was kept waiting."""
    assert checked(*looks) == []


@pytest.mark.parametrize(("late", "slow"), [(0.4, True), (0.6, False)])
def test_a_queue_behind_the_first_prefill_says_nothing(late: float, slow: bool) -> None:
    """Until the first token there is nothing to share; a long prompt's prefill may take many looks."""
    prompt = [outcome(i, LONG, step=0, sent=0.0, tokens=tuple(late_tokens(late + i))) for i in range(CROWD)]
    assert bool(checked(*ONE_BY_ONE, outcomes=prompt)) is slow


@pytest.mark.parametrize(("together", "slow"), [(1, True), (3, True), (4, False), (8, False)])
def test_answers_that_come_side_by_side_acquit_gauges_that_are_late(together: int, slow: bool) -> None:
    """So many answers between their first and last token at a time; the last of one as the next one's first is no
    moment together. Seen on SGLang, whose scheduler tells of an earlier step."""
    spans = [(i // together * 0.2, (i // together + 1) * 0.2) for i in range(CROWD)]
    answers = [
        [msgspec.structs.replace(token, at=first if i == 0 else last) for i, token in enumerate(tokens(1, 2, 3, 4))]
        for first, last in spans
    ]
    asked = [outcome(i, LONG, step=0, sent=0.0, tokens=tuple(answer)) for i, answer in enumerate(answers)]
    assert bool(checked(*ONE_BY_ONE, outcomes=asked)) is slow


def late_tokens(at: float) -> list[Token]:
    """An answer whose first token came so many seconds after it was asked for."""
    return [msgspec.structs.replace(token, at=at) for token in tokens(1, 2, 3, 4)]


def test_a_crowd_without_any_token_says_nothing_about_sharing() -> None:
    """It hangs, which is another finding."""
    hung = crowd(tokens=(), error="gone")
    assert checked(*ONE_BY_ONE, outcomes=hung) == []


@pytest.mark.parametrize(
    "engine", [{"pool_blocks": None}, {"block_size": None}], ids=["unknown pool", "unknown block size"]
)
def test_room_that_is_not_known_is_not_owed(engine: dict[str, Any]) -> None:
    """Unknown is not large."""
    assert checked(*ONE_BY_ONE, **engine) == []


@pytest.mark.parametrize(
    ("engine", "slow"),
    [
        ({"pool_blocks": 5 + ENOUGH_ROOM}, True),
        ({"pool_blocks": 5 + ENOUGH_ROOM - 1}, False),
        ({"pool_blocks": 4}, False),
        ({"most_requests": ENOUGH_ROOM}, True),
        ({"most_requests": ENOUGH_ROOM - 1}, False),
    ],
)
def test_little_room_is_no_room_to_speak_of(engine: dict[str, Any], slow: bool) -> None:
    """In the pool, or by the engine's own limit of requests at a time."""
    assert bool(checked(*ONE_BY_ONE, **engine)) is slow


def test_there_cannot_run_more_than_there_are() -> None:
    """Three of a kind in a huge pool may well be seen one by one."""
    assert checked(*ONE_BY_ONE, outcomes=crowd(ENOUGH_ROOM - 1), pool_blocks=1000) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"prompt": range(100, 181)},
        {"prompt": (*range(100, 179), 7)},
        {"residence": CachePartition("tenant", 1, None)},
        {"residence": CachePartition(None, 0, "red")},
    ],
    ids=["longer", "one token", "another adapter", "another salt"],
)
def test_a_crowd_of_different_prompts_is_owed_no_sharing(odd: dict[str, Any]) -> None:
    """One of another kind is enough: its blocks are its own."""
    prompt = odd.get("prompt", LONG)
    others = [outcome(7, prompt, (1, 2, 3, 4), step=0, sent=0.0, **{k: v for k, v in odd.items() if k != "prompt"})]
    assert checked(*ONE_BY_ONE, outcomes=[*crowd(7), *others]) == []


def test_answers_that_need_blocks_of_their_own_leave_less_room() -> None:
    """Here each decodes into two: the same pool holds four, of which two are enough."""
    greedy = crowd(max_tokens=32)
    assert [bool(checked(look(n, 7), look(1, 6), look(1, 5), outcomes=greedy)) for n in (1, 2)] == [True, False]


@pytest.mark.parametrize(("most", "slow"), [(2, True), (3, False)])
def test_two_at_a_time_are_too_few_where_all_found_their_prompt_computed(most: int, slow: bool) -> None:
    """Four blocks are shared and each needs two of its own: five have room. A crowd that was cold may have computed as
    many copies as fit, and so may one of whom one missed."""
    looks = [look(most, 7), look(1, 6), look(1, 5)]
    for cached, expected in ((64, slow), (0, False), (48, False)):
        last = outcome(7, LONG, (1, 2, 3, 4), step=0, sent=0.0, cached_tokens=cached)
        mixed = [*crowd(7, cached_tokens=64), last]
        assert bool(checked(*looks, outcomes=mixed, pool_blocks=15, most_requests=5)) is expected
    assert not checked(*looks, outcomes=crowd(cached_tokens=64), pool_blocks=11, most_requests=5)  # room for three


WINDOWED = {"uniform": False, "groups": (GroupShape(16), GroupShape(16, 3))}


@pytest.mark.parametrize(("pool", "slow"), [(20, False), (21, True), (30, True)])
def test_a_window_is_each_requests_own(pool: int, slow: bool) -> None:
    """Five blocks are shared; one of full attention and three of the window are not, so that 16 more hold four."""
    assert bool(checked(*ONE_BY_ONE, pool_blocks=pool, **WINDOWED)) is slow


def test_groups_that_nobody_knows_leave_the_room_unknown() -> None:
    """However large the pool."""
    for groups in ((), (GroupShape(16), GroupShape(16))):
        assert checked(*ONE_BY_ONE, pool_blocks=1000, uniform=False, groups=groups) == []


@pytest.mark.parametrize(
    ("second_tier", "loads", "slow"),
    [
        (True, (32.0, 96.0), False),
        (True, (None, None), False),
        (True, (32.0, 32.0), True),
        (False, (32.0, 96.0), True),
        (False, (None, None), True),
    ],
    ids=["loads", "loads are not counted", "no loads", "KV of another engine", "no tier"],
)
def test_a_crowd_that_may_wait_for_loads_says_nothing(
    second_tier: bool, loads: tuple[float | None, float | None], slow: bool
) -> None:
    """There is room, but each request loads into blocks of its own. Without loads, nothing else is owed than before."""
    before, after = (Metrics(external_hit_tokens=count) for count in loads)
    seen = history(
        *crowd(),
        workload=Workload((burst(*[ask()] * CROWD),)),
        steps=(record(0, queue=ONE_BY_ONE, before=before, after=after),),
        shape=shape(pool_blocks=13, second_tier=second_tier),
    )
    assert bool(check_concurrency(seen)) is slow


def test_only_the_requests_of_a_step_are_its_crowd() -> None:
    """Others, before it, asked what they liked."""
    warm = outcome(0, range(500, 520), step=0)
    later = [outcome(1 + i, LONG, (1, 2, 3, 4), step=1, sent=0.1) for i in range(CROWD)]
    seen = history(
        warm,
        *later,
        workload=Workload((burst(ask()), burst(*[ask()] * CROWD))),
        steps=(record(0, queue=ONE_BY_ONE), record(1, queue=ONE_BY_ONE)),
        shape=shape(pool_blocks=13),
    )
    assert ["Step 1" in f.sentence for f in check_concurrency(seen)] == [True]
