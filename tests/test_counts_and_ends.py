"""Counts are compared as far as every request told one; every request ends with an answer, or a refusal that is due."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adapters.base import Metrics, Stage, Surface
from harness.checkers.counts import check_accounting
from harness.checkers.finding import Finding, Rule
from harness.checkers.liveness import check_liveness
from harness.history import Outcome, Queue
from harness.judge import judge_again
from reports.schema import FailureClass
from tests.histories import history, outcome, record, shape

PROMPT = range(100, 140)
LONG = range(60)
TINY = shape(max_model_tokens=64)


def accounts(*outcomes: Outcome, grew: tuple[float, ...], preempted: tuple[int, ...] = ()) -> list[Finding]:
    """One step for each request, in which the hit counter grew by so much; some steps saw a preemption."""
    steps, counted, seen = [], 0.0, 0.0
    for i, growth in enumerate(grew):
        before = Metrics(hit_tokens=counted, preemptions=seen)
        counted, seen = counted + growth, seen + (i in preempted)
        steps.append(record(i, before=before, after=Metrics(hit_tokens=counted, preemptions=seen)))
    return check_accounting(history(*outcomes, steps=tuple(steps)), exclusive=True)


def told(number: int, cached: int | None = 32, **changes: Any) -> Outcome:
    """A request that was told of so many cached tokens."""
    return outcome(number, PROMPT, cached_tokens=cached, **changes)


SILENT: list[dict[str, Any]] = [
    {"cached": None},
    {"cached": None, "aborted": Stage.DECODE},
    {"cached": None, "error": "HTTP 400", "refused": True},
    {"surface": Surface(answers=2)},
]


@pytest.mark.parametrize("silent", SILENT)
def test_steps_are_compared_up_to_the_first_that_tells_no_count(silent: dict[str, Any]) -> None:
    """An aborted or refused request tells none, and each of several answers looks for itself."""
    odd = told(2, **silent)
    assert accounts(told(0), told(1), odd, told(3), grew=(32, 32, 999, 0)) == []
    (found,) = accounts(told(0), told(1), odd, told(3), grew=(32, 64, 999, 0))
    assert found.failure_class is FailureClass.ACCOUNTING
    assert "told of 64 cached tokens in all while the engine's hit counter grew by 96" in found.sentence


@pytest.mark.parametrize("silent", SILENT)
def test_nothing_is_compared_where_the_very_first_step_tells_no_count(silent: dict[str, Any]) -> None:
    """What comes after it cannot be told apart from it."""
    assert accounts(told(0, **silent), told(1), grew=(999, 0)) == []


def test_one_silent_request_of_a_burst_silences_its_step() -> None:
    """And all behind it."""
    beside = [told(0), told(1, cached=None, step=0, aborted=Stage.DECODE)]
    assert accounts(*beside, grew=(999,)) == []


def test_a_step_with_a_preemption_is_not_compared() -> None:
    """Who was preempted looks again, and is told of the last look alone."""
    assert accounts(told(0), told(1), told(2), grew=(32, 64, 32), preempted=(1,)) == []
    assert len(accounts(told(0), told(1), told(2), grew=(16, 64, 32), preempted=(1,))) == 1
    assert len(accounts(told(0), told(1), told(2), grew=(32, 64, 32))) == 1


def test_what_one_step_counts_too_few_another_may_not_make_up_for_unseen() -> None:
    """Only the sum is the engine's: it may publish a step's count in the next look."""
    assert accounts(told(0), told(1), grew=(0, 64)) == []


def liveness(*outcomes: Outcome, **changes: Any) -> list[FailureClass]:
    """What is said of these requests' ends."""
    return [f.failure_class for f in check_liveness(history(*outcomes, **changes))]


def refused(**changes: Any) -> Outcome:
    """A prompt of 60 tokens that the engine said no to."""
    return outcome(0, LONG, (), **{"error": "HTTP 400", "refused": True, **changes})


@pytest.mark.parametrize(
    ("answer", "engine", "expected"),
    [
        (5, TINY, []),
        (4, TINY, [FailureClass.API]),
        (5, shape(pool_blocks=4), []),
        (4, shape(pool_blocks=4), [FailureClass.API]),
        (5, shape(), [FailureClass.API]),
    ],
    ids=["too long", "just fits", "more than the pool", "just the pool", "room for all"],
)
def test_a_refusal_is_right_only_where_the_request_does_not_fit(
    answer: int, engine: Any, expected: list[FailureClass]
) -> None:
    """Prompt and answer together, in the model and in the pool."""
    assert liveness(refused(max_tokens=answer), shape=engine) == expected


@pytest.mark.parametrize(
    ("changes", "lost", "expected"),
    [
        ({}, None, FailureClass.API),
        ({"silent": True}, "nothing moved", FailureClass.HANG),
        ({}, "gone", FailureClass.CRASH),
    ],
)
def test_a_prompt_that_never_fits_must_be_refused_and_nothing_else(
    changes: dict[str, Any], lost: str | None, expected: FailureClass
) -> None:
    """An internal error, a hang or a crash is no refusal."""
    endless = outcome(0, range(200), (), **{"error": "HTTP 500", **changes})
    assert liveness(endless, shape=TINY, engine_lost=lost) == [expected]


def test_an_answer_to_a_prompt_that_never_fits_is_an_api_failure() -> None:
    """It was cut, or it is another prompt's. One that was aborted may have been on its way to a refusal."""
    endless = outcome(0, range(64), (1, 2, 3))
    (found,) = check_liveness(history(endless, shape=TINY))
    assert (found.failure_class, found.request) == (FailureClass.API, 0)
    assert "64 prompt tokens are more than this engine takes" in found.sentence
    assert liveness(outcome(0, range(63), (1,)), shape=TINY) == []
    assert liveness(outcome(0, range(64), (), aborted=Stage.QUEUED), shape=TINY) == []


def test_an_aborted_request_owes_no_token() -> None:
    """Its client left; one that was awaited and ended empty is a failure."""
    assert liveness(outcome(0, PROMPT, (), aborted=Stage.PREFILL, finish_reason=None)) == []
    assert liveness(outcome(0, PROMPT, ())) == [FailureClass.API]


def test_a_stall_that_ended_by_itself_is_a_hang_all_the_same() -> None:
    """Every request was answered at last, on a server that nobody stopped for it."""
    queue = Queue(at=20.0, running=0, waiting=2, pool_usage=1.0)
    stalled = history(outcome(0, PROMPT), stalled=queue, engine_lost="nothing moved for 20 s")
    assert [f.failure_class for f in check_liveness(stalled)] == [FailureClass.HANG]


CHECKERS = ("liveness", "tokens", "surface", "bounds", "accounting", "concurrency", "conservation")


@pytest.mark.parametrize("best", range(len(CHECKERS)))
def test_of_several_findings_the_strongest_is_spoken_of(best: int) -> None:
    """An end before an answer, an answer before a count; of one checker the first request before later ones."""
    said = [
        Finding(checker=checker, failure_class=FailureClass.API, sentence=f"{checker} {request}", request=request)
        for request in (7, 3, None)
        for checker in CHECKERS[best:][::-1]
    ]
    whole = judge_again(history(outcome(0, PROMPT, error="gone")), {}, Rule(exact=True), exclusive=True)
    for findings in (said, said[::-1]):
        worst = msgspec.structs.replace(whole, findings=tuple(findings)).worst()
        assert (worst.checker, worst.request) == (CHECKERS[best], None)
    requests = tuple(finding for finding in said if finding.request is not None)
    assert msgspec.structs.replace(whole, findings=requests).worst().request == 3
