"""A sampled answer that differs is rounding only where scores have steps and both engines score its token alike."""

from __future__ import annotations

import msgspec
import pytest
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import ResponseOptions, Token
from coldproof.harness.features.options.checks import check_response_options
from coldproof.harness.history.records import Identity, Outcome
from coldproof.harness.judgement.checkers.sampled_answers import differing_answers, sampled_question
from coldproof.harness.judgement.checkers.tokens import check_tokens
from coldproof.harness.judgement.finding import EXACT, Finding, Rule
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.oracle import Answer, Answers, Oracle, Question, question
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.verdict import FailureClass

PROMPT = range(100, 140)
COLD, WARM = (1, 2, 3, 4), (1, 9, 8, 7)
AT = 1  # where they differ first
STEP = 2.0**-6
STEPPED = Rule(exact=True, rounding=4 * STEP, cold=ColdAnswers(step=STEP))
SCORE = -2.0  # nats, of every token


def tokens(ids: tuple[int, ...], score: float | None = SCORE) -> tuple[Token, ...]:
    """Return an answer whose tokens all have this score."""
    return tuple(Token(id=i, at=0.0, logprob=score) for i in ids)


def sampled(first: tuple[int, ...], second: tuple[int, ...], score: float | None = SCORE) -> Outcome:
    """Return the two answers of the engine under test."""
    one = outcome(0, PROMPT, COLD)
    return msgspec.structs.replace(
        one,
        tokens=tokens(first, score),
        others=(tokens(second, score),),
        max_tokens=len(COLD),
        options=ResponseOptions(answers=2),
    )


class ColdEngine(Oracle):
    """Gives the cold answers, and this score to every token that it is asked to score."""

    name = "cold-engine"

    def __init__(self, score: float | None, *, scores_prompts: bool = True) -> None:
        self.score, self.scores_prompts = score, scores_prompts

    def ask(self, question: Question) -> Answer:
        """Return two cold answers, or the scores of a prompt."""
        if question.options.prompt_logprobs:
            unknown = (None,) * (len(question.prompt) - 1)
            return Answer(tokens((1,)), prompt_logprobs=(*unknown, self.score))
        return Answer(tokens(COLD), (tokens(COLD),))


def judged(one: Outcome, cold: ColdEngine, rule: Rule = STEPPED) -> tuple[Finding, ...]:
    """Return what counts."""
    return judge(history(one), cold, rule, exclusive=True).findings


@pytest.mark.parametrize("one", [sampled(WARM, COLD), sampled(COLD, WARM)], ids=["first answer", "second answer"])
def test_a_score_that_moved_by_a_step_explains_another_sample(one: Outcome) -> None:
    """A wrong block moves it by tenths of a nat, and the answer is wrong."""
    assert judged(one, ColdEngine(SCORE - STEP)) == ()
    (found,) = judged(one, ColdEngine(SCORE - 0.3))
    assert found.failure_class is FailureClass.CORRUPT


@pytest.mark.parametrize("one", [sampled(WARM, COLD), sampled(COLD, WARM)], ids=["first answer", "second answer"])
@pytest.mark.parametrize(
    "rule", [EXACT, msgspec.structs.replace(STEPPED, rounding=None)], ids=["no steps", "too many diverged"]
)
def test_without_steps_or_after_too_many_every_difference_counts(one: Outcome, rule: Rule) -> None:
    """Scores of float32 that are equal to seven digits draw the same sample."""
    (found,) = judged(one, ColdEngine(SCORE), rule)
    assert found.failure_class is FailureClass.CORRUPT


@pytest.mark.parametrize(
    ("one", "cold"),
    [
        (sampled(COLD, WARM, score=None), ColdEngine(SCORE)),
        (sampled(COLD, WARM), ColdEngine(None)),
        (sampled(COLD, WARM), ColdEngine(SCORE, scores_prompts=False)),
    ],
    ids=["the engine reports none", "the cold engine reports none", "the cold engine scores no prompt"],
)
def test_without_both_scores_nothing_is_decided(one: Outcome, cold: ColdEngine) -> None:
    """The difference is no violation, and it is not explained either."""
    judgement = judge(history(one), cold, STEPPED, exclusive=True)
    assert judgement.findings == ()
    assert [(found.checker, found.explained) for found in judgement.noise] == [("response options", False)]


def test_a_sample_is_compared_after_the_tokens_that_both_share() -> None:
    """The question for the cold score ends with the token that was sampled."""
    one = sampled(WARM, COLD)
    (first,) = differing_answers(one, Answer(tokens(COLD), (tokens(COLD),)))
    asked = sampled_question(one, first, longest=4096)
    assert (first.answer, first.position) == (0, AT)
    assert asked is not None
    assert asked.prompt == (*PROMPT, *WARM[: AT + 1])
    assert sampled_question(one, first, longest=len(asked.prompt)) is None  # no room for the token that it generates


def test_a_margin_explains_no_sample() -> None:
    """How close the two best tokens are says nothing about a token that was drawn at random."""
    one = sampled(WARM, COLD)
    close = tuple(msgspec.structs.replace(token, gap=STEP) for token in tokens(COLD))
    answers: Answers = {question(one, Identity(None, None)): Answer(close, (tokens(COLD),))}
    (found,) = check_tokens(history(one), answers, Rule(exact=True, rounding=4 * STEP))
    assert not found.noise


def test_scores_may_differ_by_as_much_as_their_steps() -> None:
    """A logprob is compared with the tolerance that its steps need."""
    one = msgspec.structs.replace(
        sampled(COLD, COLD, SCORE - 3 * STEP), others=(), options=ResponseOptions(logprobs=True)
    )
    answers: Answers = {question(one, Identity(None, None)): Answer(tokens(COLD))}
    assert check_response_options(history(one), answers, STEPPED) == []
    assert [found.failure_class for found in check_response_options(history(one), answers, EXACT)] == [
        FailureClass.CORRUPT
    ]
