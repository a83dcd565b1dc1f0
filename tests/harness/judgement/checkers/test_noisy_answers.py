"""Answers of an engine that is not bit-stable are judged by both sides' scores of the same tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.case_samples import BAND
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import ResponseOptions, Stage, Token
from coldproof.harness.features.options.checks import check_response_options, prompt_tolerance, tolerance
from coldproof.harness.history.records import History, Identity, Outcome
from coldproof.harness.judgement.checkers.noise_tolerance import (
    LEAST_FLIPS,
    Deviation,
    beyond_chance,
    deviation,
    excess,
    flips_needed,
    places,
)
from coldproof.harness.judgement.checkers.tokens import check_tokens
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import judge, judge_again
from coldproof.harness.judgement.oracle import Answer, Answers, Oracle, Question, question, scoring_question
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.sensitivity import sensitivity_questions
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.verdict import verdict_without_case
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.divergences import Rate
from coldproof.harness.schema.verdict import FailureClass, Verdict

PROMPT = range(100, 140)
COLD = (1, 2, 3, 4, 5, 6, 7, 8)
RULE = Rule(exact=False, noise=0.8, band=BAND)
CLOSE, FAR = 0.2, 3.0  # nats
LONGEST = 4096


def warm(ids: tuple[int, ...] = COLD, score: float = -1.0, margin: float | None = 0.1, **changes: Any) -> Outcome:
    """Return a request that was answered with these tokens.

    The engine under test gives each of them this score and this margin over the second best.
    """
    tokens = tuple(Token(id=i, at=0.0, logprob=score, gap=margin) for i in ids)
    return outcome(0, PROMPT, COLD, **{"tokens": tokens, "max_tokens": len(COLD), "cached_tokens": 32, **changes})


def scored(
    one: Outcome,
    behind: dict[int, float] | None = None,
    *,
    apart: dict[int, float] | None = None,
    cold: tuple[int, ...] = COLD,
    adapter: str | None = None,
) -> Answers:
    """Return the cold engine's answer and its scores of the tokens of this request.

    The scores equal the engine's, with the differences of `apart` at its positions. At the positions of `behind`,
    another token is better by that many nats.
    """
    own = tuple(Token(id=i, at=0.0, logprob=-1.0, gap=0.1) for i in cold)
    scores = [-1.0 + (apart or {}).get(i, 0.0) for i in range(len(one.tokens))]
    best = [score + (behind or {}).get(i, 0.0) for i, score in enumerate(scores)]
    unknown: list[float | None] = [None] * len(one.prompt)
    identity = Identity(adapter, None)
    forced = scoring_question(one, identity, longest=LONGEST)
    assert forced is not None
    return {
        question(one, identity): Answer(own),
        forced: Answer((own[0],), prompt_logprobs=(*unknown, *scores), prompt_best=(*unknown, *best)),
    }


def only_finding(one: Outcome, answers: Answers, rule: Rule = RULE) -> Finding:
    """Return the only finding about a request."""
    (only,) = check_tokens(history(one), answers, rule)
    return only


def flipped(*positions: int) -> tuple[int, ...]:
    """Return the cold answer with other tokens at these positions."""
    return tuple(100 + i if i in positions else token for i, token in enumerate(COLD))


def test_the_cold_answer_with_its_scores_is_right() -> None:
    """There is no finding, even if the scores differ a little."""
    one = warm()
    assert check_tokens(history(one), scored(one, apart={3: CLOSE, 5: -CLOSE}), RULE) == []


def test_another_token_with_a_small_margin_is_explained_by_noise() -> None:
    """The later tokens differ too, but the cold engine scores the same tokens equally."""
    one = warm(flipped(3, 4, 5, 6, 7))
    found = only_finding(one, scored(one, behind={3: CLOSE}))
    assert (found.noise, found.explained, found.position) == (True, True, 3)
    assert "within the noise tolerance" in found.sentence


def test_a_token_that_the_cold_engine_scores_much_lower_is_wrong() -> None:
    """Noise never changed a margin by as much."""
    one = warm(flipped(3))
    found = only_finding(one, scored(one, behind={3: FAR}))
    assert (found.noise, found.explained, found.failure_class) == (False, False, FailureClass.CORRUPT)
    assert "at token 3 the cold engine prefers another token, with a margin difference of 3.1 nats" in found.sentence


def test_the_engines_own_margin_counts_too() -> None:
    """A cold margin of 0.5 nats for another token is noise. As large a margin of the engine for its own is not."""
    for margin, counts in ((0.1, False), (0.5, True), (None, False)):
        one = warm(flipped(3), margin=margin)
        assert only_finding(one, scored(one, behind={3: 0.5})).noise is not counts


@pytest.mark.parametrize("by", [FAR, -FAR])
def test_a_wrong_block_that_flips_no_token_shows_in_the_scores(by: float) -> None:
    """All tokens are the cold ones, and the score of one differs by more than noise."""
    one = warm()
    found = only_finding(one, scored(one, apart={6: by}))
    assert (found.noise, found.failure_class) == (False, FailureClass.CORRUPT)
    assert "the cold answer's tokens, but at token 6" in found.sentence
    assert "differs by 3 nats" in found.sentence
    assert "(tolerance 0.5)" in found.sentence


def test_a_score_difference_after_a_flip_is_wrong_too() -> None:
    """The flip itself had a small margin."""
    one = warm(flipped(1))
    assert not only_finding(one, scored(one, behind={1: CLOSE}, apart={5: FAR})).noise


@pytest.mark.parametrize("positions", [(0,), (0, 1), (0, 2, 4)])
def test_a_short_match_with_a_known_wrong_answer_proves_nothing(positions: tuple[int, ...]) -> None:
    """A few flips with small margins may match another identity's answer by chance."""
    one = warm(flipped(*positions), identities=(Identity("digest-b", None),))
    answers = scored(one, behind=dict.fromkeys(positions, CLOSE), adapter="digest-b")
    other = {question(one, Identity("digest-a", None)): Answer(one.tokens)}
    assert only_finding(one, answers | other).explained


def test_a_match_too_long_for_noise_is_stale_state() -> None:
    """Five flips within the tolerance all give an older identity's tokens."""
    one = warm(flipped(0, 1, 2, 3, 4), identities=(Identity("digest-b", None),))
    behind = dict.fromkeys(range(5), CLOSE)
    other = {question(one, Identity("digest-a", None)): Answer(one.tokens)}
    answers = scored(one, behind=behind, adapter="digest-b")
    assert only_finding(one, answers).explained
    found = only_finding(one, answers | other)
    assert (found.noise, found.failure_class) == (False, FailureClass.STALE_STATE)
    assert "equals the answer of adapter A" in found.sentence


def test_the_number_of_flips_that_a_match_needs_follows_the_noise() -> None:
    """More noise needs more flips, at least four. If every token flips, no match proves anything."""
    needed = [flips_needed(msgspec.structs.replace(BAND, flips=flips)) for flips in (0.0, 0.001, 0.05, 0.3, 1.0)]
    assert needed == [LEAST_FLIPS, LEAST_FLIPS, 5, 12, None]
    one = Deviation(score=0.0, score_at=0, margin=0.1, margin_at=0, flips=60, places=60)
    assert beyond_chance(one, BAND)
    assert not beyond_chance(one, msgspec.structs.replace(BAND, flips=1.0))


@pytest.mark.parametrize("length", [5, 11])
def test_noise_makes_no_answer_shorter_or_longer(length: int) -> None:
    """Its tokens may all have the right scores."""
    one = warm((COLD * 2)[:length])
    assert not only_finding(one, scored(one)).noise


def test_an_answer_may_stop_elsewhere_only_after_another_token() -> None:
    """An answer of cold tokens that ends early was truncated. After a flip, the stop string may come earlier."""
    stopping = ResponseOptions(stop=("x",))
    for ids, counts in ((COLD[:5], True), (flipped(3)[:5], False)):
        one = warm(ids, options=stopping)
        assert only_finding(one, scored(one, behind={3: CLOSE} if not counts else None)).noise is not counts


def test_an_aborted_answer_is_judged_as_far_as_it_goes() -> None:
    """No length is expected. A wrong score still counts."""
    one = warm(COLD[:3], aborted=Stage.DECODE)
    assert check_tokens(history(one), scored(one), RULE) == []
    assert not only_finding(one, scored(one, apart={2: FAR})).noise


def test_the_nearer_of_two_identities_is_compared() -> None:
    """A request that an adapter change overlapped may belong to either identity."""
    one = warm(identities=(Identity("digest-a", None), Identity("digest-b", None)))
    far = scored(one, apart={2: FAR}, adapter="digest-a")
    assert check_tokens(history(one), far | scored(one, adapter="digest-b"), RULE) == []
    assert not only_finding(one, far | scored(one, apart={1: FAR}, adapter="digest-b")).noise


@pytest.mark.parametrize("response_options", [ResponseOptions(answers=2), ResponseOptions(pattern="[a-z]+")])
def test_an_answer_that_cannot_be_forced_is_judged_by_the_oracles_margin(response_options: ResponseOptions) -> None:
    """Scores under a grammar and of a sampled answer are not comparable, so the margin at the divergence decides."""
    one = warm(flipped(3), options=response_options)
    assert scoring_question(one, one.identities[0], longest=LONGEST) is None
    for margin, counts in ((0.1, False), (FAR, True)):
        own = tuple(Token(id=i, at=0.0, gap=margin) for i in COLD)
        found = only_finding(one, {question(one, one.identities[0]): Answer(own)})
        assert (found.noise, found.explained) == (not counts, False)


def test_a_model_without_room_scores_all_but_the_last_token() -> None:
    """The engine takes at most a prompt and one more token."""
    one = warm()
    whole = scoring_question(one, one.identities[0], longest=LONGEST)
    cut = scoring_question(one, one.identities[0], longest=len(one.prompt) + len(COLD))
    assert whole is not None
    assert cut is not None
    assert (whole.prompt, cut.prompt) == ((*PROMPT, *COLD), (*PROMPT, *COLD[:-1]))
    assert scoring_question(one, one.identities[0], longest=len(one.prompt) + 1) is None


def test_without_a_reported_best_token_the_cold_answers_token_is_the_best() -> None:
    """This holds as far as the tokens before are equal."""
    one = warm(flipped(3))
    own = Answer(tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD))
    cold = Answer((), prompt_logprobs=(*[None] * len(PROMPT), *[-1.0] * 3, -4.0, *[-1.0] * 4))
    made = deviation(places(one.tokens, len(PROMPT), cold, own))
    assert made is not None
    assert (made.margin, made.margin_at, made.flips) == (pytest.approx(3.1), 3, 1)
    assert deviation(places(one.tokens, len(PROMPT), Answer(()), own)) is None


def test_without_any_noise_no_deviation_is_allowed() -> None:
    """With a tolerance of zero, every deviation exceeds it."""
    none = msgspec.structs.replace(BAND, score_nats=0.0, margin_nats=0.0)
    one = Deviation(score=1e-6, score_at=0, margin=None, margin_at=0, flips=0, places=1)
    assert excess(one, none) > 1
    assert excess(msgspec.structs.replace(one, score=0.0), none) == 0.0


@pytest.mark.parametrize("unknown", ["the best token", "the token's score", "all scores"])
def test_a_divergence_with_unknown_scores_is_not_explained(unknown: str) -> None:
    """It is noise, and it leaves the requirement open."""
    one = warm(flipped(3))
    answers = scored(one, behind={3: CLOSE})
    (key,) = [known for known in answers if known.options.prompt_logprobs]
    own = question(one, one.identities[0])
    at = len(PROMPT) + 3
    forced = answers[key]
    assert forced.prompt_logprobs is not None
    if unknown == "the best token":  # nor does the cold answer report a score
        answers[key] = msgspec.structs.replace(forced, prompt_best=None)
        silent = tuple(msgspec.structs.replace(token, logprob=None) for token in answers[own].tokens)
        answers[own] = msgspec.structs.replace(answers[own], tokens=silent)
    else:
        scores = list(forced.prompt_logprobs)
        scores[at if unknown == "the token's score" else 0 :] = [None] * (1 if unknown == "the token's score" else at)
        answers[key] = msgspec.structs.replace(forced, prompt_logprobs=tuple(scores[: len(forced.prompt_logprobs)]))
    (found,) = check_tokens(history(one), answers, RULE)
    assert (found.noise, found.explained, found.position) == (True, False, 3)
    known = scored(one, behind={3: CLOSE})
    known[key] = msgspec.structs.replace(known[key], prompt_best=None)  # then the cold answer's own score is the best
    (found,) = check_tokens(history(one), known, RULE)
    assert found.explained


def test_prompt_scores_have_their_own_tolerance() -> None:
    """The scores of a prompt's unlikely tokens vary more than those of an answer's likely ones."""
    assert (tolerance(RULE), prompt_tolerance(RULE)) == (0.5, 0.9)
    options = ResponseOptions(prompt_logprobs=True)
    one = warm(options=options, prompt_logprobs=(None, *[-1.7] * (len(PROMPT) - 1)))
    cold = scored(one)
    key = question(one, one.identities[0])
    answers = cold | {key: msgspec.structs.replace(cold[key], prompt_logprobs=(None, *[-1.0] * (len(PROMPT) - 1)))}
    assert check_response_options(history(one), answers, RULE) == []
    strict = msgspec.structs.replace(RULE, band=msgspec.structs.replace(BAND, prompt_nats=0.6))
    assert len(check_response_options(history(one), answers, strict)) == 1


class RecordingOracle(Oracle):
    """An oracle with given answers that records its questions."""

    name = "cold-engine"

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer:
        """Return the given answer, or one without tokens. A known answer is not requested again."""
        if question not in self.questions:
            self.questions.append(question)
        return self.answers.get(question, Answer(()))


def judged_by(rule: Rule, one: Outcome, answers: Answers) -> tuple[list[Question], History]:
    """Return the questions of the judge about a request, and the history."""
    oracle, seen = RecordingOracle(answers), history(one)
    judgement = judge(seen, oracle, rule, exclusive=True)
    assert judge_again(seen, judgement.answers, rule, exclusive=True) == judgement
    return oracle.questions, seen


def sensitivity_of(one: Outcome, answers: Answers, rule: Rule) -> list[Question]:
    """Return the questions that show whether the answer depends on the cached tokens."""
    return sensitivity_questions(history(one), answers, rule)


def test_the_judge_has_answers_scored_only_if_scores_are_the_rule() -> None:
    """The exact rule sends no additional questions."""
    one = warm()
    answers = scored(one)
    questions, _ = judged_by(RULE, one, answers)
    assert set(questions) == {*answers, *sensitivity_of(one, answers, RULE)}
    exact, _ = judged_by(Rule(exact=True), one, answers)
    assert exact == [question(one, one.identities[0]), *sensitivity_of(one, answers, Rule(exact=True))]


def test_the_judge_queries_other_identities_only_if_noise_is_no_explanation() -> None:
    """One flip with a small margin has no owner. A large margin or many flips may be another identity's answer."""
    calm = warm(flipped(3))
    assert len(judged_by(RULE, calm, scored(calm, behind={3: CLOSE}))[0]) == 3
    many = warm(flipped(0, 1, 2, 3, 4))
    assert len(judged_by(RULE, many, scored(many, behind=dict.fromkeys(range(5), CLOSE)))[0]) > 3
    assert len(judged_by(RULE, calm, scored(calm, behind={3: FAR}))[0]) > 3


def test_explained_noise_does_not_prevent_a_verdict() -> None:
    """Explained noise is counted and reported. Unexplained noise makes the verdict inconclusive."""
    requirement = Requirement("REUSE-1", "", (), ())
    for explained, verdict in ((True, Verdict.CONFORMS), (False, Verdict.INCONCLUSIVE)):
        trial = Trial(requirement, "default", "", "test")
        one = warm(flipped(3))
        rule = msgspec.structs.replace(RULE, cold=ColdAnswers(rate=Rate(4000, 40)))
        judgement = judge_again(history(one), scored(one, behind={3: CLOSE}), rule, exclusive=True)
        noise = tuple(msgspec.structs.replace(found, explained=explained) for found in judgement.noise)
        assert noise
        trial.add(msgspec.structs.replace(judgement, noise=noise))
        given, reason = verdict_without_case(trial, None, RULE)
        assert given is verdict
        assert ("1 answers diverged" in reason) is explained


def test_the_rule_says_what_it_allows_and_how_often_that_is_wrong() -> None:
    """It uses the words of the report."""
    assert "0.5 nats" in str(RULE)
    assert "0.8 nats" in str(RULE)
    assert "at most one of 1,000,000 requests" in str(RULE)
