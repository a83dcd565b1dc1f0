"""An example is evidence only if its cold answers depend on the tokens that came from the cache."""

from __future__ import annotations

from typing import Any

import pytest
from support.case_samples import BAND
from support.histories import history, outcome, tokens

from coldproof.adapters.protocol.embedding_rows import FIRST_ROW
from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import ResponseOptions, Token
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.evidence.sensitivity import Examples
from coldproof.harness.judgement.finding import EXACT, Rule
from coldproof.harness.judgement.judge import judge, judge_again
from coldproof.harness.judgement.oracle import SCORED, Answer, Oracle, Question, question
from coldproof.harness.judgement.sensitivity import SCORE_NATS, Pair, depends, pair_of, with_other_prefix

PROMPT, LONGER = range(40, 80), range(40, 90)
COUNTERS = (Examples.SENSITIVE, Examples.INSENSITIVE, Examples.INSENSITIVE_REQUESTS)


class PartialReader(Oracle):
    """A cold engine whose answer follows from some of a prompt's tokens."""

    name = "cold-engine"

    def __init__(self, reads: slice) -> None:
        self.reads = reads
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer:
        """Return the same answer for the same tokens."""
        self.questions.append(question)
        return Answer(tokens(*[sum(question.prompt[self.reads]) % 97] * question.max_tokens))


def answered(oracle: Oracle, one: Outcome) -> Outcome:
    """Return the request with its cold answer."""
    cold = oracle.ask(question(one, one.identities[0]))
    return outcome(one.request, one.prompt, cold.ids, cached_tokens=one.cached_tokens)


@pytest.mark.parametrize(
    ("reads", "counts"),
    [(slice(None), [1, 0, 0]), (slice(0, 1), [1, 0, 0]), (slice(0, 0), [0, 1, 2]), (slice(32, None), [0, 1, 2])],
)
def test_an_example_whose_answer_does_not_depend_on_the_hit_is_insensitive(reads: slice, counts: list[float]) -> None:
    """For example, its answer may follow from the tokens after the hit. The stored answers show the same."""
    oracle = PartialReader(reads)
    seen = history(answered(oracle, outcome(0, PROMPT)), answered(oracle, outcome(1, PROMPT, cached_tokens=32)))
    judged = judge(seen, oracle, EXACT, exclusive=True)
    assert judged.findings == ()
    assert [judged.evidence[name] for name in COUNTERS] == counts
    assert judge_again(seen, judged.answers, EXACT, exclusive=True) == judged


def test_an_oracle_that_starts_an_engine_for_each_question_is_not_queried() -> None:
    """The sensitivity of the example is then unknown, and the calibration alone decides."""
    oracle = PartialReader(slice(None))
    oracle.takes_more = False
    seen = history(answered(oracle, outcome(0, PROMPT)))
    judged = judge(seen, oracle, EXACT, exclusive=True)
    assert [judged.evidence[name] for name in COUNTERS] == [0, 0, 0]


def test_the_longest_hit_is_changed_and_nothing_after_it() -> None:
    """Without a hit, the first half of the longest prompt is changed."""
    seen = history(outcome(0, LONGER), outcome(1, PROMPT, cached_tokens=16), outcome(2, PROMPT, cached_tokens=32))
    pair = pair_of(seen)
    assert pair is not None
    assert pair.asked.prompt == tuple(PROMPT)
    assert all(a != b for a, b in zip(pair.changed.prompt[:32], pair.asked.prompt[:32], strict=True))
    assert pair.changed.prompt[32:] == pair.asked.prompt[32:]
    cold = pair_of(history(outcome(0, PROMPT), outcome(1, LONGER)))
    assert cold is not None
    assert cold.asked.prompt == tuple(LONGER)
    assert cold.changed.prompt[25:] == tuple(LONGER)[25:]


def test_rows_and_images_stay() -> None:
    """A cold engine could not take other ones."""
    prompt = (40, FIRST_ROW + 7, 41)
    changed = with_other_prefix(prompt, 3, "n")
    assert changed[1] == prompt[1]
    assert all(a != b for a, b in zip(changed[::2], prompt[::2], strict=True))
    assert pair_of(history(outcome(0, (FIRST_ROW,) * 8))) is None


@pytest.mark.parametrize("changes", [{"error": "HTTP 500"}, {"options": ResponseOptions(answers=2)}])
def test_a_request_without_a_single_cold_answer_is_not_queried(changes: dict[str, Any]) -> None:
    """The sensitivity of such a request is unknown."""
    assert pair_of(history(outcome(0, PROMPT, **changes))) is None


def scored(nats: float | None) -> Answer:
    """Return an answer whose tokens have this logprob."""
    return Answer(tuple(Token(id=i, at=0.0, logprob=nats) for i in (1, 2)))


@pytest.mark.parametrize(
    ("first", "then", "rule", "differ"),
    [
        (scored(-1.0), scored(-1.0), EXACT, False),
        (scored(-1.0), scored(-1.0 - 2 * SCORE_NATS), EXACT, True),
        (scored(-1.0), scored(-1.0 - SCORE_NATS / 2), EXACT, False),
        (scored(None), scored(-1.0), EXACT, False),
        (scored(-1.0), scored(float("nan")), EXACT, False),
        (scored(-1.0), scored(-1.1), Rule(exact=False, noise=0.2), False),
        (scored(-1.0), scored(-1.3), Rule(exact=False, noise=0.2), True),
        (scored(-1.0), Answer(tokens(3, 4)), Rule(exact=False), True),
        (Answer((), pooled=((0.1, 0.2),)), Answer((), pooled=((0.1, 0.2),)), EXACT, False),
        (Answer((), pooled=((0.1, 0.2),)), Answer((), pooled=((0.1, 0.3),)), EXACT, True),
    ],
)
def test_tokens_and_scores_show_a_difference(first: Answer, then: Answer, rule: Rule, *, differ: bool) -> None:
    """A score that is unknown or not a number shows no difference."""
    assert depends(first, then, rule, length=4) is differ


def test_with_scores_the_same_tokens_are_scored_after_the_other_prompt() -> None:
    """A warm answer is judged in the same way."""
    rule = Rule(exact=False, noise=BAND.margin_nats, band=BAND)
    one = outcome(0, PROMPT, cached_tokens=32)
    questions: list[Question] = []

    class ScoringOracle(Oracle):
        name = "cold-engine"

        def ask(self, question: Question) -> Answer:
            """Return the same tokens, with scores that follow from the first token."""
            questions.append(question)
            score = -1.0 if question.prompt[0] == PROMPT[0] else -1.0 - 2 * BAND.score_nats
            scores = (*[None] * len(PROMPT), *[score] * (len(question.prompt) - len(PROMPT)))
            answer = tuple(Token(id=i, at=0.0, logprob=-1.0, gap=5.0) for i in (7, 8, 9))
            return Answer(answer[: question.max_tokens], prompt_logprobs=scores if question.options == SCORED else None)

    judged = judge(history(one), ScoringOracle(), rule, exclusive=True)
    (changed,) = [one for one in questions if one.prompt[0] != PROMPT[0]]
    assert (changed.options, changed.prompt[len(PROMPT) :]) == (SCORED, (7, 8, 9))
    assert [judged.evidence[name] for name in COUNTERS] == [1, 0, 0]


def test_questions_about_vectors_keep_their_response_options() -> None:
    """Vectors have no scores."""
    response_options = ResponseOptions(pooled=Task.EMBED)
    one = outcome(0, PROMPT, (), options=response_options, pooled=((0.1,),), max_tokens=0, cached_tokens=32)
    pair = pair_of(history(one))
    assert isinstance(pair, Pair)
    assert pair.changed.options == response_options
