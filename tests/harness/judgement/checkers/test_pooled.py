"""Wrong pooled answers are detected and attributed, and correct ones give no finding."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, history, outcome

from coldproof.adapters.protocol.pooling import Rows, Task
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.features.pooling.checks import check_pooled
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.checkers.tokens import check_tokens, differs
from coldproof.harness.judgement.finding import EXACT, Finding, Rule
from coldproof.harness.judgement.oracle import Answer, Answers, Question, distinguishing_question, question
from coldproof.harness.judgement.vectors import ROUNDING, cosine, deviation
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

PROMPT, OTHER = tuple(range(33, 73)), (*range(33, 72), 90)
COLD: Rows = ((0.5, -0.25, 0.0, 1.0),)
EACH: Rows = tuple((float(place), 1.0) for place in range(len(PROMPT)))


def pooled(
    number: int, rows: Rows, *, task: Task = Task.EMBED, prompt: tuple[int, ...] = PROMPT, **more: Any
) -> Outcome:
    """Return a request for a pooled answer with the rows that it got."""
    facts = {"options": ResponseOptions(pooled=task), "pooled": rows, "finish_reason": None, **more}
    return outcome(number, prompt, (), **facts)


def cold(*pairs: tuple[Outcome, Rows]) -> Answers:
    """Return the cold answers of requests."""
    return {question(one, one.identities[0]): Answer((), pooled=rows) for one, rows in pairs}


def moved(rows: Rows, by: float, row: int = 0) -> Rows:
    """Return the rows with the last value of one of them changed."""
    changed = (*rows[row][:-1], rows[row][-1] + by)
    return (*rows[:row], changed, *rows[row + 1 :])


def findings(one: Outcome, rows: Rows, rule: Rule = EXACT) -> list[Finding]:
    """Return the findings about a request with this cold answer."""
    return check_pooled(history(one), cold((one, rows)), rule)


@pytest.mark.parametrize(
    ("by", "rule", "found"),
    [
        (0.0, EXACT, False),
        (ROUNDING / 2, EXACT, False),
        (ROUNDING * 2, EXACT, True),
        (-ROUNDING * 2, EXACT, True),
        (0.01, Rule(exact=False, pooled=0.02), False),
        (0.03, Rule(exact=False, pooled=0.02), True),
    ],
)
def test_a_value_may_differ_by_the_tolerance(by: float, rule: Rule, found: bool) -> None:
    """The tolerance is that of the calibration, if there is one."""
    assert bool(findings(pooled(0, moved(COLD, by)), COLD, rule)) is found


def test_the_finding_has_the_difference_from_the_cold_vector() -> None:
    """The sentence has the difference, the cosine and the number of cached tokens."""
    (found,) = findings(pooled(0, ((0.5, -0.25, 1.0, 0.0),), cached_tokens=32), COLD)
    assert (found.failure_class, found.request, found.position) == (FailureClass.CORRUPT, 0, 0)
    assert "a value differs by 1, cosine 0.238095" in found.sentence
    assert "32 of its 40 prompt tokens" in found.sentence


@pytest.mark.parametrize("count", [0, len(PROMPT) - 32, len(PROMPT) - 1, len(PROMPT) + 1])
def test_each_token_needs_its_vector(count: int) -> None:
    """No vector may be missing and none may be added. Without any vector, there is no answer."""
    rows = (*EACH, EACH[0])[:count]
    one = pooled(0, rows, task=Task.TOKEN_EMBED)
    found = findings(one, EACH) or check_liveness(history(one))
    assert [one.failure_class for one in found] == [FailureClass.API]
    assert findings(pooled(0, EACH, task=Task.TOKEN_EMBED), EACH) == []


def test_the_vector_that_differs_most_is_named() -> None:
    """It is named by the token of the prompt."""
    (found,) = findings(pooled(0, moved(EACH, 0.5, row=17), task=Task.TOKEN_EMBED), EACH)
    assert found.position == 17
    assert "in the vector of token 17" in found.sentence


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_must_be_numbers(value: float) -> None:
    """This holds for any tolerance."""
    (found,) = findings(pooled(0, ((0.5, value, 0.0, 1.0),)), COLD, Rule(exact=False, pooled=10.0))
    assert found.failure_class is FailureClass.CORRUPT
    assert "no numbers" in found.sentence


def test_all_vectors_have_as_many_values_as_cold() -> None:
    """A shorter vector is an answer of another form."""
    (found,) = findings(pooled(0, (COLD[0][:3],)), COLD)
    assert found.failure_class is FailureClass.API


def test_an_answer_of_another_prompt_is_named() -> None:
    """It is named by the number of its request."""
    theirs = moved(COLD, 0.5)
    first, then = pooled(0, theirs, prompt=OTHER), pooled(1, theirs)
    (found,) = check_pooled(history(first, then), cold((first, theirs), (then, COLD)), EXACT)
    assert (found.failure_class, found.request) == (FailureClass.CROSS_REQUEST, 1)
    assert "request 0" in found.sentence


def test_an_answer_of_another_adapter_is_named() -> None:
    """It is named if its cold answer is known."""
    one, stale = pooled(0, moved(COLD, 0.5), adapter="digest-a"), moved(COLD, 0.5)
    answers = cold((one, COLD)) | {Question(PROMPT, "digest-b", 0, one.options): Answer((), pooled=stale)}
    (found,) = check_pooled(history(one), answers, EXACT)
    assert found.failure_class is FailureClass.STALE_STATE
    assert "adapter B" in found.sentence


def test_a_prefix_of_another_identity_is_named() -> None:
    """It is named if no other identity computed it."""
    first, then = pooled(0, COLD, salt="red"), pooled(1, moved(COLD, 0.5), cached_tokens=32)
    (found,) = check_pooled(history(first, then), cold((first, COLD), (then, COLD)), EXACT)
    assert found.failure_class is FailureClass.STALE_STATE
    assert "salt 'red'" in found.sentence


def test_an_answer_may_be_that_of_either_side_of_a_change() -> None:
    """The answer is compared with the nearer one."""
    one = pooled(0, moved(COLD, 0.5), adapter="digest-a")
    (new,) = one.identities
    old = msgspec.structs.replace(new, adapter=None)
    both = msgspec.structs.replace(one, identities=(old, new))
    answers = {question(both, i): Answer((), pooled=r) for i, r in ((old, COLD), (new, moved(COLD, 0.5)))}
    assert check_pooled(history(both), answers, EXACT) == []


def test_answers_in_tokens_are_not_compared_as_vectors() -> None:
    """Pooled answers have no tokens and are not compared by them."""
    one = outcome(0, PROMPT)
    assert check_pooled(history(one), {question(one, one.identities[0]): Answer(one.tokens)}, EXACT) == []
    wrong = pooled(0, moved(COLD, 0.5))
    assert check_tokens(history(wrong), cold((wrong, COLD)), EXACT) == []
    assert check_liveness(history(wrong)) == []


def test_a_prompt_that_fills_the_context_may_be_pooled() -> None:
    """No token follows it."""
    steps = Workload((burst(ask(("stem", 60), max_tokens=0, options=ResponseOptions(pooled=Task.EMBED))),))
    shaped = history(pooled(0, COLD), workload=steps)
    full = msgspec.structs.replace(shaped, shape=msgspec.structs.replace(shaped.shape, max_model_tokens=len(PROMPT)))
    assert check_liveness(full) == []


def test_whether_another_identity_would_be_detected() -> None:
    """The vectors of both identities decide."""
    one = pooled(0, COLD, adapter="digest-a")
    other = msgspec.structs.replace(one.identities[0], adapter="digest-b")
    other_question = distinguishing_question(one, other)
    assert other_question.options == one.options
    for rows, detected in ((COLD, False), (moved(COLD, 0.5), True)):
        assert differs(one, other, cold((one, COLD)) | {other_question: Answer((), pooled=rows)}) is detected
    assert differs(one, other, cold((one, COLD))) is None


def test_a_vector_of_zeros_has_no_angle() -> None:
    """The cosine is unknown, and the difference is known."""
    assert cosine((0.0, 0.0), (1.0, 0.0)) is None
    assert deviation(((0.0, 0.0),), ((1.0, 0.0),)).largest == 1.0
    assert cosine((3.0, 4.0), (6.0, 8.0)) == pytest.approx(1.0)
