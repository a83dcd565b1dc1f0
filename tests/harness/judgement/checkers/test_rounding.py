"""If measured rounding chooses between two tokens, the exact rule gives no finding. A small margin is not enough."""

from __future__ import annotations

import msgspec
import pytest
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import Token
from coldproof.harness.history.records import Identity, Outcome
from coldproof.harness.judgement.checkers.tokens import RESOLUTION_NATS, check_tokens, preference, tie_questions
from coldproof.harness.judgement.finding import EXACT, Rule
from coldproof.harness.judgement.judge import judge, judge_again
from coldproof.harness.judgement.oracle import SCORED, Answer, Answers, Oracle, Question, question
from coldproof.harness.schema.verdict import FailureClass

PROMPT = range(100, 140)
COLD, WARM = (1, 2, 3, 4, 5, 6), (1, 2, 9, 8, 7, 5)
AT = 2  # where they differ first
CLOSE, FAR = 1e-4, 0.5
ROUNDED = Rule(exact=True, rounding=2 * CLOSE)  # the calibration measured as much
LONGEST = 4096


def tokens(ids: tuple[int, ...], score: float | None = None, gap: float | None = None) -> tuple[Token, ...]:
    """Return an answer whose tokens all have this score and this margin over the second best."""
    return tuple(Token(id=i, at=0.0, logprob=score, gap=gap) for i in ids)


def warm(ids: tuple[int, ...] = WARM, score: float | None = None) -> Outcome:
    """Return the answer of the engine under test."""
    one = outcome(0, PROMPT, COLD)
    return msgspec.structs.replace(one, tokens=tokens(ids, score), max_tokens=len(COLD))


def cold(one: Outcome, score: float | None = -1.0, gap: float | None = None) -> Answers:
    """Return the answer of the cold engine."""
    return {question(one, Identity(None, None)): Answer(tokens(COLD, score, gap))}


def with_forced(one: Outcome, score: float | None) -> Answers:
    """Return the cold answer, and the cold engine's score of the token that the engine under test chose."""
    (forced,) = tie_questions(one, AT, longest=LONGEST)
    assert forced.prompt == (*PROMPT, *WARM[: AT + 1])
    unknown = (None,) * (len(forced.prompt) - 1)
    return cold(one) | {forced: Answer(tokens((1,)), prompt_logprobs=(*unknown, score))}


@pytest.mark.parametrize("apart", [CLOSE, FAR])
@pytest.mark.parametrize("known_by", ["the margin", "a forced score", "both sides' scores"])
def test_a_tie_is_rounding_however_it_is_known(known_by: str, apart: float) -> None:
    """A clear preference is no tie, and the answer is wrong."""
    one = warm(score=-1.0 - apart) if known_by == "both sides' scores" else warm()
    answers = cold(one, gap=apart) if known_by == "the margin" else cold(one)
    if known_by == "a forced score":
        answers = with_forced(one, -1.0 - apart)
    (found,) = check_tokens(history(one), answers, ROUNDED)
    tie = apart == CLOSE
    assert (found.noise, found.explained, found.position) == (tie, tie, AT)
    assert ("rounding decides" in found.sentence) is tie
    assert found.failure_class is FailureClass.CORRUPT


@pytest.mark.parametrize(
    ("rule", "noise"),
    [(EXACT, False), (Rule(exact=True, rounding=CLOSE / 2), False), (Rule(exact=True, rounding=None), False)],
)
def test_a_small_margin_without_measured_rounding_explains_nothing(rule: Rule, *, noise: bool) -> None:
    """An engine may report any margin."""
    one = warm()
    (found,) = check_tokens(history(one), cold(one, gap=CLOSE), rule)
    assert (found.noise, found.explained) == (noise, False)


def test_below_the_resolution_of_scores_rounding_is_unknown_unless_it_was_refuted() -> None:
    """Unknown is no agreement, so such a difference leaves the requirement open."""
    one = warm()
    answers = cold(one, gap=RESOLUTION_NATS / 2)
    (found,) = check_tokens(history(one), answers, EXACT)
    assert (found.noise, found.explained) == (True, False)
    (found,) = check_tokens(history(one), answers, Rule(exact=True, rounding=None))
    assert not found.noise


def test_the_margins_of_both_sides_add_up() -> None:
    """Their sum is how much the scores of the two tokens changed."""
    one = msgspec.structs.replace(warm(), tokens=tokens(WARM, -1.0, 0.5))
    (found,) = check_tokens(history(one), cold(one, gap=CLOSE), ROUNDED)
    assert not found.noise


@pytest.mark.parametrize(
    ("again", "explained"),
    [
        (((*WARM[: AT + 1], 7, 7, 7),), True),
        (((*COLD[:AT], 8, 8, 8, 8),), False),
        (((*COLD[:4], 9, 9),), False),
        ((), False),
    ],
)
def test_a_repeated_cold_answer_with_the_same_tokens_explains_them(
    again: tuple[tuple[int, ...], ...], *, explained: bool
) -> None:
    """A repetition that differs elsewhere, or in another way, explains nothing."""
    one = warm()
    answers = {key: msgspec.structs.replace(a, again=again) for key, a in cold(one, gap=FAR).items()}
    (found,) = check_tokens(history(one), answers, EXACT)
    assert (found.noise, found.explained) == (explained, explained)


def test_without_scores_every_difference_counts() -> None:
    """This rule is for engines that report no scores."""
    (found,) = check_tokens(history(warm()), cold(warm(), score=None), EXACT)
    assert not found.noise
    assert preference(warm(), Answer(tokens(COLD)), {}, longest=LONGEST) is None


def test_no_tie_makes_an_answer_longer_or_shorter() -> None:
    """The answer differs at no token."""
    one = warm(COLD[:-2])
    (found,) = check_tokens(history(one), cold(one, gap=CLOSE), ROUNDED)
    assert not found.noise


def test_the_answer_to_another_request_is_no_tie() -> None:
    """Rounding does not produce another request's whole answer."""
    one = warm()
    other = msgspec.structs.replace(outcome(1, range(40, 80), WARM), tokens=tokens(WARM), max_tokens=len(WARM))
    answers = cold(one, gap=CLOSE) | {question(other, Identity(None, None)): Answer(tokens(WARM))}
    (found,) = check_tokens(history(one, other), answers, ROUNDED)
    assert (found.noise, found.failure_class) == (False, FailureClass.CROSS_REQUEST)


class ScoringOracle(Oracle):
    """An oracle that reports this margin and scores prompts if `scores_prompts` is set."""

    name = "cold-engine"

    def __init__(self, *, scores_prompts: bool, gap: float | None = None) -> None:
        self.scores_prompts, self.gap = scores_prompts, gap
        self.questions: list[Question] = []
        self.again: list[Question] = []

    def ask(self, question: Question) -> Answer:
        """Return the cold answer with this margin, or the score of the forced token."""
        self.questions.append(question)
        if question.options == SCORED:
            return Answer(tokens((1,)), prompt_logprobs=(*[None] * (len(question.prompt) - 1), -1.0))
        return Answer(tokens(COLD[: question.max_tokens], -1.0, self.gap))

    def ask_again(self, question: Question) -> tuple[tuple[int, ...], ...]:
        """Return the tokens of the other answer."""
        self.again.append(question)
        return (WARM,)


@pytest.mark.parametrize("scores_prompts", [True, False])
def test_a_judgement_requests_the_score_only_if_it_needs_it(*, scores_prompts: bool) -> None:
    """A right answer needs no additional question."""
    oracle = ScoringOracle(scores_prompts=scores_prompts)
    assert not judge(history(warm(COLD)), oracle, ROUNDED, exclusive=True).findings
    assert not any(question.options == SCORED for question in oracle.questions)
    made = judge(history(warm()), oracle, ROUNDED, exclusive=True)
    assert bool(made.findings) is not scores_prompts
    assert sum(question.options == SCORED for question in oracle.questions) == scores_prompts


def test_a_known_margin_needs_no_score() -> None:
    """Prompt logprobs are slow, and a vLLM with adapters and a large vocabulary crashes on them."""
    oracle = ScoringOracle(scores_prompts=True, gap=FAR)
    assert judge(history(warm()), oracle, EXACT, exclusive=True).findings
    assert not any(question.options == SCORED for question in oracle.questions)
    assert not oracle.again


def test_the_cold_engine_is_queried_again_about_close_tokens() -> None:
    """Its second answer explains the difference, and the stored answers show it as well."""
    oracle = ScoringOracle(scores_prompts=True, gap=CLOSE)
    made = judge(history(warm()), oracle, EXACT, exclusive=True)
    assert set(oracle.again) == {question(warm(), Identity(None, None))}
    assert ([found.explained for found in made.noise], made.findings) == ([True], ())
    assert judge_again(made.history, made.answers, EXACT, exclusive=True) == made
    right = ScoringOracle(scores_prompts=True, gap=CLOSE)
    judge(history(warm(COLD)), right, EXACT, exclusive=True)
    assert not right.again
