"""The steps of a scheduler are checked against what is known of its requests and against its documented order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, history, outcome, record, shape

from coldproof.adapters.protocol.engine_steps import Admission, Chunk, EngineStep
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import ResponseOptions, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.features.preemption.step_checks import (
    check_admissions,
    check_step_counts,
    check_step_gauges,
    check_waits,
)
from coldproof.harness.features.pressure.checks import check_gauge
from coldproof.harness.history.records import History, Outcome, QueueSample, ResetRecord
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

POOL = 100  # blocks
PROMPTS = tuple(range(100 * n, 100 * n + 40) for n in range(3))


def request(
    number: int, answer: tuple[int, ...] = (7, 8), *, sent: float = 0.0, finished: float = 1.0, **more: Any
) -> Outcome:
    """Return a request of the only burst."""
    return outcome(number, PROMPTS[number], answer, step=0, sent=sent, finished=finished, **more)


def history_of(
    *outcomes: Outcome, steps: tuple[EngineStep, ...], priorities: tuple[int, ...] = (0, 0, 0), **more: Any
) -> History:
    """Return a history of one burst of these requests with these steps of the scheduler."""
    sent = burst(*(ask(priority=priority) for priority in priorities[: len(outcomes)]))
    facts: dict[str, Any] = {"shape": shape(pool_blocks=POOL), **more}
    return history(*outcomes, workload=Workload((sent,)), engine_steps=steps, **facts)


def step(at: float, *admitted: int, resumed: bool = False, **facts: Any) -> EngineStep:
    """Return a step that admits these requests."""
    begun = tuple(Admission(str(n), 0, resumed) for n in admitted)
    return EngineStep(at=at, **{"admitted": begun, **facts})


def checked(*outcomes: Outcome, exclusive: bool = True, **facts: Any) -> list[Finding]:
    """Return the findings of the checks of steps."""
    history = history_of(*outcomes, **facts)
    checks = (check_step_gauges, check_step_counts, check_admissions, check_waits)
    return [found for check in checks for found in check(history, exclusive=exclusive)]


@pytest.mark.parametrize("usage", [0.5, 0.29, 0.31, 1.3, 0.0])
def test_the_pool_gauge_is_the_share_of_blocks_that_are_not_free(usage: float) -> None:
    """This holds in every step, also while requests share blocks."""
    right = step(0.0, 0, running=1, free=70, usage=0.3)
    assert checked(request(0), steps=(right,)) == []
    (found,) = checked(request(0), steps=(right, step(0.1, running=1, free=70, usage=usage)))
    assert (found.checker, found.failure_class) == ("conservation", FailureClass.ACCOUNTING)
    assert "70 of 100 blocks are free" in found.sentence
    assert f"{usage:.2%}" in found.sentence


def test_an_unknown_gauge_or_pool_is_not_judged() -> None:
    """An unknown value proves nothing."""
    wrong = step(0.0, 0, running=1, free=70, usage=0.9)
    assert checked(request(0), steps=(msgspec.structs.replace(wrong, usage=None),)) == []
    assert checked(request(0), steps=(wrong,), shape=shape(pool_blocks=None)) == []
    assert checked(request(0), steps=(wrong,), exclusive=False) == []


@pytest.mark.parametrize(("running", "waiting"), [(1, 0), (2, 1), (0, 1), (3, 0)])
def test_every_unanswered_request_runs_or_waits(running: int, waiting: int) -> None:
    """Two requests are unanswered: more in the engine are a leak, and fewer are lost requests."""
    both = (request(0), request(1))
    assert checked(*both, steps=(step(0.1, 0, 1, running=2, waiting=0, free=9),)) == []
    assert checked(*both, steps=(step(0.1, 0, running=1, waiting=1, free=9),)) == []
    (found,) = checked(*both, steps=(step(0.1, 0, running=running, waiting=waiting, free=9),))
    assert found.checker == "conservation"
    assert f"{running} requests run and {waiting} wait in the engine, but 2 are unanswered" in found.sentence


def test_a_request_that_is_not_sent_yet_or_has_ended_does_not_count() -> None:
    """A client that disconnects before a step does not count in it. The engine's clock stands still between the two."""
    late, gone = request(1, sent=0.2), request(2, finished=0.1, aborted=Stage.QUEUED)
    assert checked(request(0), late, gone, steps=(step(0.1, 0, running=1, free=9),)) == []
    assert checked(request(0), late, steps=(step(0.2, 0, running=1, waiting=1, free=9),)) == []
    refused = request(1, finished=0.0, refused=True, error="too long")
    assert checked(request(0), refused, steps=(step(0.1, 0, running=1, free=9),)) == []
    ended = request(1, finished=0.3, refused=True, error="a load failed")  # which ends the request after a while
    assert checked(request(0), ended, steps=(step(0.1, 0, 1, running=2, free=9), step(0.3, running=1, free=9))) == []


def test_counts_that_have_another_reason_are_not_judged() -> None:
    """Each of several answers counts as a request, and what an earlier run left has its own finding."""
    wrong = (step(0.1, 0, running=4, free=9),)
    assert len(checked(request(0), steps=wrong)) == 1
    assert checked(request(0, options=ResponseOptions(answers=4)), steps=wrong) == []
    assert checked(request(0), steps=wrong, left_over=Metrics(running=3.0)) == []
    assert checked(request(0), steps=wrong, shape=shape(pool_blocks=POOL, second_tier=True)) == []
    assert checked(request(0), steps=(step(0.1, 0, free=9),)) == []  # no gauge of running requests


@pytest.mark.parametrize(("tokens", "requests"), [(63, None), (None, 2), (64, 2), (63, 3)])
def test_a_step_stays_within_its_limits(tokens: int | None, requests: int | None) -> None:
    """The step computes 60 tokens of a prompt and four decoding requests, and three requests run."""
    three = tuple(request(number) for number in range(3))
    busy = step(0.1, 0, running=3, free=9, decoding=4, chunks=(Chunk("0", 0, 60, 60),))
    within = shape(pool_blocks=POOL, step_tokens=64, most_requests=3)
    assert checked(*three, steps=(busy,), shape=within) == []
    assert checked(*three, steps=(busy,)) == []  # unknown limits
    (found,) = checked(*three, steps=(busy,), shape=shape(pool_blocks=POOL, step_tokens=tokens, most_requests=requests))
    assert "computes 64 tokens for 3 running requests" in found.sentence


def test_a_reset_of_an_idle_engine_succeeds() -> None:
    """It may fail while a request or a second tier holds blocks, or because of what an earlier run left."""
    steps = (step(0.1, 0, running=1, free=9),)

    def refused(at: float, **more: Any) -> list[Finding]:
        return checked(request(0), steps=steps, resets=(ResetRecord(began=at, ended=at, success=False),), **more)

    assert refused(0.5) == []
    (found,) = refused(1.0)
    assert (found.checker, "failed while the engine was idle" in found.sentence) == ("conservation", True)
    assert refused(1.0, shape=shape(pool_blocks=POOL, second_tier=True)) == []
    assert refused(1.0, left_over=Metrics(pool_usage=0.1)) == []
    assert checked(request(0), steps=steps, resets=(ResetRecord(began=1.0, ended=1.0, success=True),)) == []


@pytest.mark.parametrize("cached", [0, 16, 48])
def test_a_count_is_what_was_not_computed(cached: int) -> None:
    """This holds in a small pool, too, in which no hit is expected."""
    steps = (step(0.1, free=9, admitted=(Admission("0", 32),)), step(0.3, 0, resumed=True))
    assert checked(request(0, cached_tokens=32), steps=steps) == []
    (found,) = checked(request(0, cached_tokens=cached), steps=steps)
    assert (found.checker, found.request) == ("accounting", 0)
    assert f"reports {cached} cached tokens, but its prompt was computed from token 32 on" in found.sentence
    for unknown in (request(0, cached_tokens=None), request(0, (), cached_tokens=cached)):
        assert checked(unknown, steps=steps) == []
    assert checked(request(0, cached_tokens=cached), steps=steps, shape=shape(second_tier=True)) == []


def test_requests_are_admitted_in_their_order() -> None:
    """The second request must not begin while the first waits, nor before it in the same step."""
    both = (request(0), request(1, sent=0.1))
    for right in ((step(0.1, 0, 1),), (step(0.1, 0), step(0.2, 1)), (step(0.0, 0),)):
        assert checked(*both, steps=right) == []
    for wrong in ((step(0.1, 1), step(0.3, 0)), (step(0.1, 1, 0),), (step(0.1, 1),)):
        (found,) = checked(*both, steps=wrong)
        assert (found.checker, found.failure_class, found.request) == ("order", FailureClass.API, 0)
        assert "Request 1 was admitted while request 0 waited" in found.sentence


def test_only_a_more_urgent_request_may_overtake() -> None:
    """A lower number is more urgent."""
    overtakes = (step(0.1, 1), step(0.3, 0))
    assert checked(request(0), request(1), steps=overtakes, priorities=(0, -5)) == []
    assert len(checked(request(0), request(1), steps=overtakes, priorities=(-5, 0))) == 1
    assert len(checked(request(0), request(1), steps=overtakes, priorities=(5, 5))) == 1
    unordered = shape(pool_blocks=POOL, in_order=False)
    assert checked(request(0), request(1), steps=overtakes, priorities=(-5, 0), shape=unordered) == []


def test_a_more_urgent_request_is_admitted_first_although_sent_later() -> None:
    """It must have been sent by then, and equal urgency is not enough."""
    later, queue = (request(0), request(1, sent=0.1)), (step(0.2, 0), step(0.3, 1))
    (found,) = checked(*later, steps=queue, priorities=(0, -5))
    assert (found.checker, found.request) == ("order", 1)
    assert "Request 0 was admitted while request 1 waited, which is more urgent" in found.sentence
    assert checked(*later, steps=(step(0.2, 1), step(0.3, 0)), priorities=(0, -5)) == []
    assert checked(*later, steps=queue, priorities=(0, 0)) == []
    assert checked(request(0), request(1, sent=0.25), steps=queue, priorities=(0, -5)) == []
    assert checked(request(0), request(1, sent=0.1, adapter="digest-a"), steps=queue, priorities=(0, -5)) == []


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (request(0, finished=0.05, aborted=Stage.QUEUED), {}),
        (request(0, adapter="digest-a"), {}),
        (request(0, options=ResponseOptions(pattern="[a-f]*")), {}),
        (request(0), {"shape": shape(pool_blocks=POOL, second_tier=True)}),
        (request(0), {"resets": (ResetRecord(began=0.0, ended=0.0, success=True),)}),
    ],
    ids=["had been aborted", "another adapter", "a grammar", "a second tier", "a reset"],
)
def test_a_request_that_may_wait_for_something_else_proves_nothing(first: Outcome, more: dict[str, Any]) -> None:
    """It may wait for an adapter slot, a grammar or a load, or it was queued again."""
    assert checked(first, request(1), steps=(step(0.1, 1), step(0.3, 0)), **more) == []


ROOMY = shape(pool_blocks=POOL, step_tokens=100, most_requests=8)
WAITS = (step(0.1, 0, running=1, waiting=1, free=90, chunks=(Chunk("0", 0, 40, 40),)), step(0.3, 1, running=2, free=9))


def test_no_request_waits_if_nothing_is_short() -> None:
    """Two prompts of 40 tokens fit into a step of 100 tokens, and into the pool."""
    both = (request(0), request(1))
    at_once = (step(0.1, 0, 1, running=2, free=90),)
    assert checked(*both, steps=at_once, shape=ROOMY) == []
    (found,) = checked(*both, steps=WAITS, shape=ROOMY)
    assert (found.checker, found.failure_class, found.request) == ("concurrency", FailureClass.LOST_REUSE, 1)
    assert "Request 1 waits 0.10 s after the start of the run" in found.sentence


@pytest.mark.parametrize(
    ("second", "more"),
    [
        (request(1), {"shape": msgspec.structs.replace(ROOMY, step_tokens=79)}),
        (request(1), {"shape": msgspec.structs.replace(ROOMY, step_tokens=None)}),
        (request(1), {"shape": msgspec.structs.replace(ROOMY, most_requests=1), "running": None}),
        (request(1), {"shape": msgspec.structs.replace(ROOMY, pool_blocks=7)}),
        (request(1), {"shape": msgspec.structs.replace(ROOMY, uniform=False)}),
        (request(1), {"shape": msgspec.structs.replace(ROOMY, second_tier=True)}),
        (request(1, sent=0.2), {"running": None}),
        (request(1, adapter="digest-a"), {}),
        (request(1, options=ResponseOptions(pattern="[a-f]*")), {}),
        (request(1, options=ResponseOptions(answers=2)), {}),
        (request(1), {"resets": (ResetRecord(began=0.0, ended=0.0, success=True, scope=(ResetScope.RUNNING,)),)}),
    ],
    ids=["tokens", "unknown", "requests", "pool", "layers", "tier", "later", "adapter", "grammar", "answers", "reset"],
)
def test_a_request_that_may_have_to_wait_is_not_judged(second: Outcome, more: dict[str, Any]) -> None:
    """A resource is short, or may be."""
    steps = WAITS
    if "running" in more:
        steps = tuple(msgspec.structs.replace(made, running=more["running"]) for made in WAITS)
    facts = {"shape": ROOMY, **{name: value for name, value in more.items() if name != "running"}}
    assert [f for f in checked(request(0), second, steps=steps, **facts) if f.checker == "concurrency"] == []


def test_resumptions_are_no_admissions() -> None:
    """A resumed request comes first, and only its first admission counts."""
    steps = (step(0.0, 0, 1), step(0.2, 1, resumed=True), step(0.3, 0, resumed=True))
    assert checked(request(0), request(1), steps=steps) == []


def test_a_gauge_above_one_is_impossible() -> None:
    """A client of a server sees it as well."""
    samples = [QueueSample(at=0.1, running=2.0, waiting=0.0, pool_usage=usage) for usage in (1.0, 1.02)]
    for count, found in ((1, 0), (2, 1)):
        queue = tuple(samples[:count])
        findings = check_gauge(with_queue(queue))
        assert len(findings) == found
    assert "102.00% of its pool in use: more blocks than exist" in findings[0].sentence


def with_queue(queue: tuple[QueueSample, ...]) -> History:
    """Return a history of a burst during which the queue was sampled."""
    return history(request(0), steps=(record(0, queue=queue),), shape=shape(pool_blocks=POOL))
