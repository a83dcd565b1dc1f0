"""The order of preemptions is judged by urgency, and only by what a history proves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, history, outcome, record, shape, tokens

from coldproof.adapters.protocol.engine_steps import Admission, EngineStep
from coldproof.adapters.protocol.images import image_id, image_positions
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.features.preemption.checks import check_order
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

PROMPT = range(100, 140)
IMAGE = image_positions(image_id("cat", 0), 19)


def timed(number: int, *, times: tuple[float, ...], lost: tuple[float, ...] = (), sent: float = 0.1) -> Outcome:
    """Return a request whose tokens came and whose blocks were lost this many seconds after it was sent."""
    answer = tuple(msgspec.structs.replace(tokens(9)[0], at=at) for at in times)
    facts: dict[str, Any] = {"tokens": answer, "preempted_at": lost, "preemptions": len(lost)}
    return outcome(number, PROMPT, (9,) * len(times), step=0, sent=sent, finished=sent + 1.0, **facts)


def checked(first: Outcome, other: Outcome, priorities: tuple[int, int] = (-5, 5)) -> list[Finding]:
    """Return the findings about two requests with these priorities."""
    return check_order(history(first, other, workload=Workload((burst(*(ask(priority=p) for p in priorities)),))))


PREEMPTED = timed(0, times=(0.1, 0.3), lost=(0.2,))
RUNNING = timed(1, times=(0.1, 0.2, 0.3))


def test_the_more_urgent_request_must_not_be_preempted_first() -> None:
    """The other request had a token before, and got its next tokens during the preemption."""
    for early in (0.05, 0.1, 0.15):  # whichever came first
        assert len(checked(PREEMPTED, timed(1, times=(0.02, 0.1, 0.2, 0.3), sent=early))) == 1
    (found,) = checked(PREEMPTED, RUNNING)
    assert (found.checker, found.failure_class, found.request) == ("order", FailureClass.API, 0)
    assert "Request 0 with priority -5 was preempted while request 1 with priority 5 kept running" in found.sentence


@pytest.mark.parametrize("priorities", [(5, 5), (0, 0), (5, -5), (6, 5)])
def test_the_less_urgent_request_is_preempted_first(priorities: tuple[int, int]) -> None:
    """One of two equal requests has to be preempted."""
    assert checked(PREEMPTED, RUNNING, priorities) == []


@pytest.mark.parametrize(
    "other",
    [
        timed(1, times=(0.1, 0.15)),
        timed(1, times=(0.25, 0.3)),
        timed(1, times=(0.2, 0.3)),
        timed(1, times=(0.1, 0.3), lost=(0.2,)),
        timed(1, times=(0.1, 0.3), lost=(0.15,)),
        timed(1, times=(0.1, 0.3), lost=(0.25,)),
        timed(1, times=()),
    ],
    ids=["had ended", "began later", "began then", "preempted then", "preempted before", "preempted next", "no token"],
)
def test_a_request_that_may_not_have_been_running_proves_nothing(other: Outcome) -> None:
    """It is unknown whether that request had blocks at that moment and kept them."""
    assert checked(PREEMPTED, other) == []


def findings_of_equals(first: Outcome = PREEMPTED, other: Outcome = RUNNING, **sizes: Any) -> list[Finding]:
    """Return the findings about two requests of one priority, if the engine documents which is preempted first."""
    workload = Workload((burst(ask(), ask()),))
    return check_order(history(first, other, workload=workload, shape=shape(**{"preempts_latest": True, **sizes})))


def test_the_later_of_two_equals_is_preempted_first() -> None:
    """The first request must not be preempted, whether it was sent at the same time or earlier."""
    for sent in (0.1, 0.15):
        (found,) = findings_of_equals(other=timed(1, times=(0.02, 0.1, 0.2, 0.3), sent=sent))
        assert (found.checker, found.failure_class, found.request) == ("order", FailureClass.API, 0)
        assert "request 1 with priority 0 kept running; the later of two equals is preempted first" in found.sentence
    later_preempted = (timed(0, times=(0.1, 0.2, 0.3)), timed(1, times=(0.1, 0.3), lost=(0.2,)))
    assert findings_of_equals(*later_preempted) == []


GRAMMAR = ResponseOptions(pattern="[a-f]{9}")


@pytest.mark.parametrize(
    ("first", "other", "sizes"),
    [
        (PREEMPTED, RUNNING, {"preempts_latest": False}),
        (PREEMPTED, RUNNING, {"second_tier": True}),
        (PREEMPTED, msgspec.structs.replace(RUNNING, model="tenant"), {}),
        (msgspec.structs.replace(PREEMPTED, options=GRAMMAR), msgspec.structs.replace(RUNNING, options=GRAMMAR), {}),
        (PREEMPTED, timed(1, times=(0.1, 0.3), lost=(0.2,)), {}),
        (PREEMPTED, timed(1, times=(0.25, 0.3)), {}),
    ],
    ids=["not documented", "second tier", "other model", "grammar", "preempted too", "began later"],
)
def test_a_request_that_may_have_been_admitted_later_proves_nothing(
    first: Outcome, other: Outcome, sizes: dict[str, Any]
) -> None:
    """A request that was not running, and an engine that documents no order, prove nothing either."""
    assert findings_of_equals(first, other, **sizes) == []


def test_equal_moments_of_two_requests_are_equal() -> None:
    """Sums of the same steps differ in their last digits. A request that began at that moment had no blocks to lose."""
    first = timed(0, times=(0.1, 0.6), lost=(0.2,), sent=0.1)
    other = timed(1, times=(0.1, 0.4), sent=0.2)
    assert checked(first, other) == []


def test_a_wrong_preemption_order_reaches_the_judgement() -> None:
    """It ranks after wrong answers, which say more."""
    workload = Workload((burst(ask(priority=-5), ask(priority=5)),))
    seen = history(PREEMPTED, RUNNING, workload=workload, steps=(record(0),))
    cold = {question(o, o.identities[0]): Answer(o.tokens) for o in (PREEMPTED, RUNNING)}
    judged = judge_again(seen, cold, Rule(exact=True), exclusive=True)
    assert [f.checker for f in judged.findings] == ["order"]
    assert judged.worst().checker == "order"


RESUMED_LATE = timed(0, times=(0.1, 0.5), lost=(0.2,))
LONGER = tuple(range(100, 150))  # takes at least as long as what a preempted request computes again


def longer(**more: Any) -> Outcome:
    """Return a request with a longer prompt, of which nothing was cached."""
    return msgspec.structs.replace(timed(1, **more), prompt=LONGER, cached_tokens=0)


OVERTAKER = longer(times=(0.4,))


def overtaking_findings(
    first: Outcome,
    other: Outcome,
    *,
    priorities: tuple[int, int] = (0, 0),
    engine_steps: tuple[EngineStep, ...] | None = None,
    **sizes: Any,
) -> list[Finding]:
    """Return the findings if the engine documents that preempted requests are resumed first."""
    workload = Workload((burst(*(ask(priority=p) for p in priorities)),))
    found = shape(**{"resumes_first": True, **sizes})
    return check_order(history(first, other, workload=workload, shape=found, engine_steps=engine_steps))


@pytest.mark.parametrize("priorities", [(0, 0), (-1, 1)])
def test_a_preempted_request_is_not_overtaken(priorities: tuple[int, int]) -> None:
    """The other request was sent later and had no token at the preemption."""
    (found,) = overtaking_findings(RESUMED_LATE, OVERTAKER, priorities=priorities)
    assert (found.checker, found.request) == ("order", 0)
    assert "resumed only after request 1" in found.sentence


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (RESUMED_LATE, longer(times=(0.6,))),
        (RESUMED_LATE, longer(times=(0.5,))),
        (RESUMED_LATE, longer(times=(0.15, 0.4))),
        (RESUMED_LATE, longer(times=(0.4,), lost=(0.3,))),
        (RESUMED_LATE, timed(1, times=(0.4,))),
        (RESUMED_LATE, msgspec.structs.replace(OVERTAKER, cached_tokens=32)),
        (RESUMED_LATE, msgspec.structs.replace(OVERTAKER, cached_tokens=None)),
        (RESUMED_LATE, msgspec.structs.replace(OVERTAKER, model="tenant")),
        (RESUMED_LATE, msgspec.structs.replace(OVERTAKER, options=ResponseOptions(pattern="a+"))),
        (RESUMED_LATE, msgspec.structs.replace(OVERTAKER, options=ResponseOptions(answers=2))),
        (msgspec.structs.replace(RESUMED_LATE, prompt=(*IMAGE, *PROMPT)), OVERTAKER),
        (RESUMED_LATE, msgspec.structs.replace(OVERTAKER, step=1)),
        (RESUMED_LATE, longer(times=(0.45,), sent=0.05)),
        (timed(0, times=(0.1,), lost=(0.2,)), OVERTAKER),
        (timed(0, times=(0.1, 0.5)), OVERTAKER),
    ],
    ids=[
        "later",
        "at the same time",
        "had begun",
        "preempted too",
        "shorter",
        "cached",
        "perhaps cached",
        "adapter",
        "grammar",
        "answers",
        "images",
        "step",
        "sent",
        "ended",
        "not preempted",
    ],
)
def test_a_request_that_may_come_first_overtakes_none(first: Outcome, other: Outcome) -> None:
    """The two requests wait for different things, or it is unknown which was first."""
    assert overtaking_findings(first, other) == []


@pytest.mark.parametrize(
    ("again", "begun", "overtaken"), [(4, 3, True), (3, 3, False), (3, 4, False), (4, 1, False)], ids=str
)
def test_the_steps_say_which_request_was_admitted_first(again: int, begun: int, overtaken: bool) -> None:
    """A token that comes earlier says nothing there: of two chunks in one step, that of a shorter prompt may be the
    last.
    """
    steps = tuple(
        EngineStep(at=number / 10 + 0.05, admitted=tuple(Admission(str(name), 0, number > 0) for name in names))
        for number in range(5)
        for names in [[*([0] if number in (0, again) else []), *([1] if number == begun else [])]]
    )
    seen = overtaking_findings(RESUMED_LATE, OVERTAKER, engine_steps=steps)
    assert bool(seen) is overtaken


def test_a_preemption_by_a_reset_ends_in_the_step_that_reports_it() -> None:
    """The step begins with the admission, so that its time is before that of the preemption. A later one is another."""
    twice = timed(0, times=(0.1, 0.5, 0.8), lost=(0.2, 0.7))
    steps = tuple(
        EngineStep(at=at, admitted=(Admission(str(name), 0, name == 0 and at > 0),))
        for at, name in ((0.0, 0), (0.25, 0), (0.35, 1), (0.65, 0))
    )
    assert overtaking_findings(twice, OVERTAKER, engine_steps=steps) == []
    late = (steps[0], steps[2], steps[1], steps[3])
    at = (0.0, 0.35, 0.4, 0.65)
    moved = tuple(msgspec.structs.replace(step, at=now) for step, now in zip(late, at, strict=True))
    assert overtaking_findings(twice, OVERTAKER, engine_steps=moved)


def test_without_a_documented_order_there_is_no_finding() -> None:
    """Urgent requests and the loads of a second tier may come first, too."""
    assert overtaking_findings(RESUMED_LATE, OVERTAKER, resumes_first=False) == []
    # With layers of a state, chunks may end at its blocks.
    assert overtaking_findings(RESUMED_LATE, OVERTAKER, uniform=False) == []
    assert overtaking_findings(RESUMED_LATE, OVERTAKER, second_tier=True) == []
    assert overtaking_findings(RESUMED_LATE, OVERTAKER, priorities=(1, -1)) == []
