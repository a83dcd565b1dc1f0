"""Who loses its blocks first: judged by urgency, and only by what a history really shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, history, outcome, record, shape, tokens

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


def one(number: int, *, times: tuple[float, ...], lost: tuple[float, ...] = (), sent: float = 0.1) -> Outcome:
    """A request whose tokens came, and whose blocks were lost, so many seconds after it was sent."""
    answer = tuple(msgspec.structs.replace(tokens(9)[0], at=at) for at in times)
    facts: dict[str, Any] = {"tokens": answer, "preempted_at": lost, "preemptions": len(lost)}
    return outcome(number, PROMPT, (9,) * len(times), step=0, sent=sent, finished=sent + 1.0, **facts)


def checked(first: Outcome, other: Outcome, priorities: tuple[int, int] = (-5, 5)) -> list[Finding]:
    """What is said of two requests of these priorities."""
    return check_order(history(first, other, workload=Workload((burst(*(ask(priority=p) for p in priorities)),))))


LOST = one(0, times=(0.1, 0.3), lost=(0.2,))
ON = one(1, times=(0.1, 0.2, 0.3))


def test_the_more_urgent_may_not_give_way_to_the_less_urgent() -> None:
    """Which had a token before, and got its next ones while the other was out."""
    for early in (0.05, 0.1, 0.15):  # whoever came first
        assert len(checked(LOST, one(1, times=(0.02, 0.1, 0.2, 0.3), sent=early))) == 1
    (found,) = checked(LOST, ON)
    assert (found.checker, found.failure_class, found.request) == ("order", FailureClass.API, 0)
    assert "Request 0 with priority -5 was preempted while request 1 with priority 5 kept running" in found.sentence


@pytest.mark.parametrize("priorities", [(5, 5), (0, 0), (5, -5), (6, 5)])
def test_the_less_urgent_gives_way(priorities: tuple[int, int]) -> None:
    """Among equals somebody has to."""
    assert checked(LOST, ON, priorities) == []


@pytest.mark.parametrize(
    "other",
    [
        one(1, times=(0.1, 0.15)),
        one(1, times=(0.25, 0.3)),
        one(1, times=(0.2, 0.3)),
        one(1, times=(0.1, 0.3), lost=(0.2,)),
        one(1, times=(0.1, 0.3), lost=(0.15,)),
        one(1, times=(0.1, 0.3), lost=(0.25,)),
        one(1, times=()),
    ],
    ids=["was over", "began later", "began then", "lost too", "was out", "lost next", "no token"],
)
def test_who_may_not_have_been_running_then_proves_nothing(other: Outcome) -> None:
    """Of whom nobody knows that it held blocks at that moment, and kept them."""
    assert checked(LOST, other) == []


def among_equals(first: Outcome = LOST, other: Outcome = ON, **sizes: Any) -> list[Finding]:
    """What is said of two requests of one priority, on an engine that documents which of them is preempted first."""
    workload = Workload((burst(ask(), ask()),))
    return check_order(history(first, other, workload=workload, shape=shape(**{"preempts_latest": True, **sizes})))


def test_of_equals_the_later_one_is_preempted_first() -> None:
    """Not the one that came first, at once or earlier."""
    for sent in (0.1, 0.15):
        (found,) = among_equals(other=one(1, times=(0.02, 0.1, 0.2, 0.3), sent=sent))
        assert (found.checker, found.failure_class, found.request) == ("order", FailureClass.API, 0)
        assert "request 1 with priority 0 kept running; the later of two equals is preempted first" in found.sentence
    later_gives_way = (one(0, times=(0.1, 0.2, 0.3)), one(1, times=(0.1, 0.3), lost=(0.2,)))
    assert among_equals(*later_gives_way) == []


GRAMMAR = ResponseOptions(pattern="[a-f]{9}")


@pytest.mark.parametrize(
    ("first", "other", "sizes"),
    [
        (LOST, ON, {"preempts_latest": False}),
        (LOST, ON, {"second_tier": True}),
        (LOST, msgspec.structs.replace(ON, model="tenant"), {}),
        (msgspec.structs.replace(LOST, surface=GRAMMAR), msgspec.structs.replace(ON, surface=GRAMMAR), {}),
        (LOST, one(1, times=(0.1, 0.3), lost=(0.2,)), {}),
        (LOST, one(1, times=(0.25, 0.3)), {}),
    ],
    ids=["not documented", "second tier", "other model", "grammar", "preempted too", "began later"],
)
def test_who_may_have_been_admitted_later_proves_nothing(first: Outcome, other: Outcome, sizes: dict[str, Any]) -> None:
    """Nor one that was not running, or where the engine documents no order."""
    assert among_equals(first, other, **sizes) == []


def test_equal_moments_of_two_requests_are_equal() -> None:
    """Sums of seconds that count the same steps differ in their last digits: who began then had nothing to lose."""
    first = one(0, times=(0.1, 0.6), lost=(0.2,), sent=0.1)
    other = one(1, times=(0.1, 0.4), sent=0.2)
    assert checked(first, other) == []


def test_an_unfair_preemption_reaches_the_judgement() -> None:
    """Behind wrong answers, which say more."""
    workload = Workload((burst(ask(priority=-5), ask(priority=5)),))
    seen = history(LOST, ON, workload=workload, steps=(record(0),))
    cold = {question(o, o.identities[0]): Answer(o.tokens) for o in (LOST, ON)}
    judged = judge_again(seen, cold, Rule(exact=True), exclusive=True)
    assert [f.checker for f in judged.findings] == ["order"]
    assert judged.worst().checker == "order"


WAITED = one(0, times=(0.1, 0.5), lost=(0.2,))
OVERTAKER = one(1, times=(0.4,))


def overtaken(first: Outcome, other: Outcome, *, priorities: tuple[int, int] = (0, 0), **sizes: Any) -> list[Finding]:
    """What is said where the engine documents that the preempted come first."""
    workload = Workload((burst(*(ask(priority=p) for p in priorities)),))
    return check_order(history(first, other, workload=workload, shape=shape(**{"resumes_first": True, **sizes})))


@pytest.mark.parametrize("priorities", [(0, 0), (-1, 1)])
def test_a_preempted_request_is_not_overtaken(priorities: tuple[int, int]) -> None:
    """By one that was sent later, and had no token when it lost its blocks."""
    (found,) = overtaken(WAITED, OVERTAKER, priorities=priorities)
    assert (found.checker, found.request) == ("order", 0)
    assert "resumed only after request 1" in found.sentence


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (WAITED, one(1, times=(0.6,))),
        (WAITED, one(1, times=(0.5,))),
        (WAITED, one(1, times=(0.15, 0.4))),
        (WAITED, one(1, times=(0.4,), lost=(0.3,))),
        (WAITED, msgspec.structs.replace(OVERTAKER, model="tenant")),
        (WAITED, msgspec.structs.replace(OVERTAKER, surface=ResponseOptions(pattern="a+"))),
        (WAITED, msgspec.structs.replace(OVERTAKER, surface=ResponseOptions(answers=2))),
        (msgspec.structs.replace(WAITED, prompt=(*IMAGE, *PROMPT)), OVERTAKER),
        (WAITED, msgspec.structs.replace(OVERTAKER, step=1)),
        (WAITED, one(1, times=(0.45,), sent=0.05)),
        (one(0, times=(0.1,), lost=(0.2,)), OVERTAKER),
        (one(0, times=(0.1, 0.5)), OVERTAKER),
    ],
    ids=[
        "later",
        "together",
        "had begun",
        "lost too",
        "adapter",
        "grammar",
        "answers",
        "images",
        "step",
        "sent",
        "ended",
        "kept",
    ],
)
def test_what_may_come_first_overtakes_nobody(first: Outcome, other: Outcome) -> None:
    """The two differ in what they wait for, or it cannot be told who was first."""
    assert overtaken(first, other) == []


def test_without_a_documented_order_nobody_is_overtaken() -> None:
    """Nor where the urgent pass, or a second tier's loads decide."""
    assert overtaken(WAITED, OVERTAKER, resumes_first=False) == []
    assert overtaken(WAITED, OVERTAKER, uniform=False) == []  # its chunks may end at the blocks of a state
    assert overtaken(WAITED, OVERTAKER, second_tier=True) == []
    assert overtaken(WAITED, OVERTAKER, priorities=(1, -1)) == []
