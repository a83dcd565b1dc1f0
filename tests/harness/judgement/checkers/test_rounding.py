"""Where two tokens have the same score but for rounding, an exact rule accuses nobody."""

from __future__ import annotations

import msgspec
import pytest
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import Token
from coldproof.harness.history.records import Identity, Outcome
from coldproof.harness.judgement.checkers.tokens import ROUNDING_NATS, check_tokens, preference, tie_questions
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.oracle import SCORED, Answer, Answers, Oracle, Question, question
from coldproof.reports.schema.verdict import FailureClass

PROMPT = range(100, 140)
COLD, WARM = (1, 2, 3, 4, 5, 6), (1, 2, 9, 8, 7, 5)
AT = 2  # where they differ first
CLOSE, FAR = ROUNDING_NATS / 100, 0.5
LONGEST = 4096


def tokens(ids: tuple[int, ...], score: float | None = None, gap: float | None = None) -> tuple[Token, ...]:
    """An answer, each token of which has this score and this margin over the second best."""
    return tuple(Token(id=i, at=0.0, logprob=score, gap=gap) for i in ids)


def warm(ids: tuple[int, ...] = WARM, score: float | None = None) -> Outcome:
    """The answer of the engine under test."""
    one = outcome(0, PROMPT, COLD)
    return msgspec.structs.replace(one, tokens=tokens(ids, score), max_tokens=len(COLD))


def cold(one: Outcome, score: float | None = -1.0, gap: float | None = None) -> Answers:
    """The cold engine's."""
    return {question(one, Identity(None, None)): Answer(tokens(COLD, score, gap))}


def with_forced(one: Outcome, score: float | None) -> Answers:
    """With the cold engine's score of the token that the engine under test chose."""
    (asked,) = tie_questions(one, AT, longest=LONGEST)
    assert asked.prompt == (*PROMPT, *WARM[: AT + 1])
    unknown = (None,) * (len(asked.prompt) - 1)
    return cold(one) | {asked: Answer(tokens((1,)), prompt_logprobs=(*unknown, score))}


@pytest.mark.parametrize("apart", [CLOSE, FAR])
@pytest.mark.parametrize("known_by", ["the margin", "a forced score", "both sides' scores"])
def test_a_tie_is_rounding_however_it_is_known(known_by: str, apart: float) -> None:
    """A clear preference is none, and the answer is wrong."""
    one = warm(score=-1.0 - apart) if known_by == "both sides' scores" else warm()
    answers = cold(one, gap=apart) if known_by == "the margin" else cold(one)
    if known_by == "a forced score":
        answers = with_forced(one, -1.0 - apart)
    (found,) = check_tokens(history(one), answers, EXACT)
    tie = apart == CLOSE
    assert (found.noise, found.explained, found.position) == (tie, tie, AT)
    assert ("rounding decides" in found.sentence) is tie
    assert found.failure_class is FailureClass.CORRUPT


def test_without_scores_every_difference_counts() -> None:
    """So it was, and so it stays for engines that report none."""
    (found,) = check_tokens(history(warm()), cold(warm(), score=None), EXACT)
    assert not found.noise
    assert preference(warm(), Answer(tokens(COLD)), {}, longest=LONGEST) is None


def test_no_tie_makes_an_answer_longer_or_shorter() -> None:
    """It differs at no token."""
    one = warm(COLD[:-2])
    (found,) = check_tokens(history(one), cold(one, gap=CLOSE), EXACT)
    assert not found.noise


def test_the_answer_to_another_request_is_no_tie() -> None:
    """Rounding does not make a whole answer of somebody else's."""
    one = warm()
    other = msgspec.structs.replace(outcome(1, range(40, 80), WARM), tokens=tokens(WARM), max_tokens=len(WARM))
    answers = cold(one, gap=CLOSE) | {question(other, Identity(None, None)): Answer(tokens(WARM))}
    (found,) = check_tokens(history(one, other), answers, EXACT)
    assert (found.noise, found.failure_class) == (False, FailureClass.CROSS_REQUEST)


class Scoring(Oracle):
    """An engine that reports a margin or none, and may score prompts."""

    name = "cold-engine"

    def __init__(self, *, scores_prompts: bool, gap: float | None = None) -> None:
        self.scores_prompts, self.gap = scores_prompts, gap
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        """Prefer both tokens alike."""
        self.asked.append(question)
        if question.surface == SCORED:
            return Answer(tokens((1,)), prompt_logprobs=(*[None] * (len(question.prompt) - 1), -1.0))
        return Answer(tokens(COLD[: question.max_tokens], -1.0, self.gap))


@pytest.mark.parametrize("scores_prompts", [True, False])
def test_a_judgement_asks_for_the_score_only_where_it_needs_and_gets_it(*, scores_prompts: bool) -> None:
    """Right answers cost nothing."""
    oracle = Scoring(scores_prompts=scores_prompts)
    assert not judge(history(warm(COLD)), oracle, EXACT, exclusive=True).findings
    assert not any(asked.surface == SCORED for asked in oracle.asked)
    made = judge(history(warm()), oracle, EXACT, exclusive=True)
    assert bool(made.findings) is not scores_prompts
    assert sum(asked.surface == SCORED for asked in oracle.asked) == scores_prompts


def test_a_known_margin_asks_for_no_score() -> None:
    """Prompt logprobs are slow, and a vLLM with adapters and a large vocabulary dies of them."""
    oracle = Scoring(scores_prompts=True, gap=FAR)
    assert judge(history(warm()), oracle, EXACT, exclusive=True).findings
    assert not any(asked.surface == SCORED for asked in oracle.asked)
