"""Shared blocks allow more requests to run at a time, and nothing is reported if a needed value is unknown."""

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
REQUESTS = 8


def sample(running: float | None, waiting: float | None, at: float = 0.5) -> QueueSample:
    """Return a sample of the queue."""
    return QueueSample(at=at, running=running, waiting=waiting, pool_usage=0.9)


def equal_requests(count: int = REQUESTS, **changes: Any) -> list[Outcome]:
    """Return the outcomes of equal long prompts in one burst, each of which decodes four tokens into one new block."""
    return [outcome(i, LONG, (1, 2, 3, 4), **{"step": 0, "sent": 0.0, **changes}) for i in range(count)]


def findings(
    *samples: QueueSample, outcomes: list[Outcome] | None = None, step: Step | None = None, **engine: Any
) -> list[Finding]:
    """Return the findings about equal requests with these samples of the queue.

    The pool has 5 shared blocks and room for 8 more.
    """
    given = equal_requests() if outcomes is None else outcomes
    seen = history(
        *given,
        workload=Workload((step or burst(*[ask()] * len(given)),)),
        steps=(record(0, queue=samples),),
        shape=shape(**{"pool_blocks": 13, **engine}),
    )
    return check_concurrency(seen)


ONE_BY_ONE = (sample(1, 7), sample(1, 6), sample(1, 5))


def test_equal_requests_that_run_one_by_one_are_lost_reuse() -> None:
    """Shared blocks are needed only once, so there is room, and yet the waiting requests are not admitted."""
    (found,) = findings(*ONE_BY_ONE)
    assert (found.checker, found.failure_class, found.request) == ("concurrency", FailureClass.LOST_REUSE, None)
    assert "room for 8 at a time; in 3 samples with requests waiting, at most 1 ran" in found.sentence


@pytest.mark.parametrize(("most", "slow"), [(1, True), (3, True), (4, False), (8, False)])
def test_half_of_the_requests_that_fit_is_enough(most: int, slow: bool) -> None:
    """One sample is enough, because the first request may still be computing what all of them share."""
    assert bool(findings(sample(1, 7), sample(most, 4), sample(1, 1))) is slow


@pytest.mark.parametrize(
    "samples",
    [
        (),
        ONE_BY_ONE[: ENOUGH_SAMPLES - 1],
        (*ONE_BY_ONE[: ENOUGH_SAMPLES - 1], sample(1, 0), sample(1, 0)),
        (*ONE_BY_ONE[: ENOUGH_SAMPLES - 1], sample(1, None), sample(None, 5)),
    ],
    ids=["none", "too few", "too few that saw a queue", "too few that saw all"],
)
def test_too_few_samples_give_no_result(samples: tuple[QueueSample, ...]) -> None:
    """If no request waits in a sample, no request was kept waiting."""
    assert findings(*samples) == []


@pytest.mark.parametrize(("late", "slow"), [(0.4, True), (0.6, False)])
def test_a_queue_behind_the_first_prefill_says_nothing(late: float, slow: bool) -> None:
    """Before the first token there is nothing to share, and the prefill of a long prompt may take many samples."""
    prompt = [outcome(i, LONG, step=0, sent=0.0, tokens=tuple(late_tokens(late + i))) for i in range(REQUESTS)]
    assert bool(findings(*ONE_BY_ONE, outcomes=prompt)) is slow


@pytest.mark.parametrize(("together", "slow"), [(1, True), (3, True), (4, False), (8, False)])
def test_answers_that_overlap_outweigh_late_gauges(together: int, slow: bool) -> None:
    """Gauges may be late: SGLang's scheduler reports an earlier step.

    `together` answers are between their first and last token at a time. The last token of one answer and the first of
    the next at the same moment do not overlap.
    """
    spans = [(i // together * 0.2, (i // together + 1) * 0.2) for i in range(REQUESTS)]
    answers = [
        [msgspec.structs.replace(token, at=first if i == 0 else last) for i, token in enumerate(tokens(1, 2, 3, 4))]
        for first, last in spans
    ]
    given = [outcome(i, LONG, step=0, sent=0.0, tokens=tuple(answer)) for i, answer in enumerate(answers)]
    assert bool(findings(*ONE_BY_ONE, outcomes=given)) is slow


def late_tokens(at: float) -> list[Token]:
    """Return the tokens of an answer that all came this many seconds after the request was sent."""
    return [msgspec.structs.replace(token, at=at) for token in tokens(1, 2, 3, 4)]


def test_requests_without_any_token_say_nothing_about_sharing() -> None:
    """The requests hang, which is another finding."""
    hung = equal_requests(tokens=(), error="gone")
    assert findings(*ONE_BY_ONE, outcomes=hung) == []


@pytest.mark.parametrize(
    "engine", [{"pool_blocks": None}, {"block_size": None}], ids=["unknown pool", "unknown block size"]
)
def test_unknown_room_is_not_expected(engine: dict[str, Any]) -> None:
    """An unknown pool is not taken for a large one."""
    assert findings(*ONE_BY_ONE, **engine) == []


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
def test_little_room_gives_no_result(engine: dict[str, Any], slow: bool) -> None:
    """The pool limits the room, or the engine's own limit of requests at a time."""
    assert bool(findings(*ONE_BY_ONE, **engine)) is slow


def test_few_requests_give_no_result() -> None:
    """Three equal requests in a large pool may run one by one."""
    assert findings(*ONE_BY_ONE, outcomes=equal_requests(ENOUGH_ROOM - 1), pool_blocks=1000) == []


@pytest.mark.parametrize(
    "odd",
    [
        {"prompt": range(100, 181)},
        {"prompt": (*range(100, 179), 7)},
        {"partition": CachePartition("tenant", 1, None)},
        {"partition": CachePartition(None, 0, "red")},
    ],
    ids=["longer", "one token", "another adapter", "another salt"],
)
def test_different_requests_need_not_share(odd: dict[str, Any]) -> None:
    """One different request is enough, because its blocks are its own."""
    prompt = odd.get("prompt", LONG)
    others = [outcome(7, prompt, (1, 2, 3, 4), step=0, sent=0.0, **{k: v for k, v in odd.items() if k != "prompt"})]
    assert findings(*ONE_BY_ONE, outcomes=[*equal_requests(7), *others]) == []


def test_answers_that_need_blocks_of_their_own_leave_less_room() -> None:
    """Each request decodes into two blocks here, so the same pool has room for four, of which two are enough."""
    greedy = equal_requests(max_tokens=32)
    assert [bool(findings(sample(n, 7), sample(1, 6), sample(1, 5), outcomes=greedy)) for n in (1, 2)] == [True, False]


@pytest.mark.parametrize(("most", "slow"), [(2, True), (3, False)])
def test_two_at_a_time_are_too_few_if_all_hit_their_prompt(most: int, slow: bool) -> None:
    """Four blocks are shared and each request needs two of its own, so five fit.

    Cold requests may have computed as many copies as fit, and so may requests of which one missed.
    """
    samples = [sample(most, 7), sample(1, 6), sample(1, 5)]
    for cached, expected in ((64, slow), (0, False), (48, False)):
        last = outcome(7, LONG, (1, 2, 3, 4), step=0, sent=0.0, cached_tokens=cached)
        mixed = [*equal_requests(7, cached_tokens=64), last]
        assert bool(findings(*samples, outcomes=mixed, pool_blocks=15, most_requests=5)) is expected
    # This pool has room for three.
    assert not findings(*samples, outcomes=equal_requests(cached_tokens=64), pool_blocks=11, most_requests=5)


WINDOWED = {"uniform": False, "groups": (GroupShape(16), GroupShape(16, 3))}


@pytest.mark.parametrize(("pool", "slow"), [(20, False), (21, True), (30, True)])
def test_the_blocks_of_a_window_are_not_shared(pool: int, slow: bool) -> None:
    """Five blocks are shared, and a request needs four of its own: one of full attention and three of the window."""
    assert bool(findings(*ONE_BY_ONE, pool_blocks=pool, **WINDOWED)) is slow


def test_unknown_groups_leave_the_room_unknown() -> None:
    """This holds for any size of the pool."""
    for groups in ((), (GroupShape(16), GroupShape(16))):
        assert findings(*ONE_BY_ONE, pool_blocks=1000, uniform=False, groups=groups) == []


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
def test_requests_that_may_wait_for_loads_give_no_result(
    second_tier: bool, loads: tuple[float | None, float | None], slow: bool
) -> None:
    """There is room, but each request loads into its own blocks. Without loads the requests are judged as before."""
    before, after = (Metrics(external_hit_tokens=count) for count in loads)
    seen = history(
        *equal_requests(),
        workload=Workload((burst(*[ask()] * REQUESTS),)),
        steps=(record(0, queue=ONE_BY_ONE, before=before, after=after),),
        shape=shape(pool_blocks=13, second_tier=second_tier),
    )
    assert bool(check_concurrency(seen)) is slow


def test_only_requests_of_the_same_step_are_compared() -> None:
    """A request of an earlier step may have any prompt."""
    warm = outcome(0, range(500, 520), step=0)
    later = [outcome(1 + i, LONG, (1, 2, 3, 4), step=1, sent=0.1) for i in range(REQUESTS)]
    seen = history(
        warm,
        *later,
        workload=Workload((burst(ask()), burst(*[ask()] * REQUESTS))),
        steps=(record(0, queue=ONE_BY_ONE), record(1, queue=ONE_BY_ONE)),
        shape=shape(pool_blocks=13),
    )
    assert ["Step 1" in f.sentence for f in check_concurrency(seen)] == [True]
