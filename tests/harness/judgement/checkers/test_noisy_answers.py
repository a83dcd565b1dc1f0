"""Answers of an engine that is not bit-stable are judged by both sides' scores of the same tokens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.case_samples import BAND
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import ResponseOptions, Stage, Token
from coldproof.harness.features.options.checks import check_surface, prompt_tolerance, tolerance
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


def warm(ids: tuple[int, ...] = COLD, score: float = -1.0, lead: float | None = 0.1, **changes: Any) -> Outcome:
    """One request that was answered with these tokens, each scored so by the engine under test."""
    tokens = tuple(Token(id=i, at=0.0, logprob=score, gap=lead) for i in ids)
    return outcome(0, PROMPT, COLD, **{"tokens": tokens, "max_tokens": len(COLD), "cached_tokens": 32, **changes})


def scored(
    one: Outcome,
    behind: dict[int, float] | None = None,
    *,
    apart: dict[int, float] | None = None,
    cold: tuple[int, ...] = COLD,
    adapter: str | None = None,
) -> Answers:
    """What the cold side says: its own answer, and of each of the given tokens a score like the engine's, but `apart`
    at these positions, and with another token ahead of it by so many nats at those.
    """
    own = tuple(Token(id=i, at=0.0, logprob=-1.0, gap=0.1) for i in cold)
    scores = [-1.0 + (apart or {}).get(i, 0.0) for i in range(len(one.tokens))]
    best = [score + (behind or {}).get(i, 0.0) for i, score in enumerate(scores)]
    unknown: list[float | None] = [None] * len(one.prompt)
    identity = Identity(adapter, None)
    asked = scoring_question(one, identity, longest=LONGEST)
    assert asked is not None
    return {
        question(one, identity): Answer(own),
        asked: Answer((own[0],), prompt_logprobs=(*unknown, *scores), prompt_best=(*unknown, *best)),
    }


def found(one: Outcome, answers: Answers, rule: Rule = RULE) -> Finding:
    """The one finding about a request."""
    (only,) = check_tokens(history(one), answers, rule)
    return only


def flipped(*positions: int) -> tuple[int, ...]:
    """The cold answer with other tokens there."""
    return tuple(100 + i if i in positions else token for i, token in enumerate(COLD))


def test_the_cold_answer_with_its_scores_is_right() -> None:
    """Nothing to say, also with scores a little apart."""
    one = warm()
    assert check_tokens(history(one), scored(one, apart={3: CLOSE, 5: -CLOSE}), RULE) == []


def test_a_close_call_that_went_the_other_way_is_noise_and_leaves_no_doubt() -> None:
    """The tokens behind it are others, too; the cold side was forced along and scores them alike."""
    one = warm(flipped(3, 4, 5, 6, 7))
    said = found(one, scored(one, behind={3: CLOSE}))
    assert (said.noise, said.explained, said.position) == (True, True, 3)
    assert "within the noise tolerance" in said.sentence


def test_a_token_that_the_cold_side_puts_far_behind_is_wrong() -> None:
    """Further than noise ever moved a lead."""
    one = warm(flipped(3))
    said = found(one, scored(one, behind={3: FAR}))
    assert (said.noise, said.explained, said.failure_class) == (False, False, FailureClass.CORRUPT)
    assert "at token 3 the cold engine prefers another token, with a margin difference of 3.1 nats" in said.sentence


def test_the_engines_own_lead_counts_too() -> None:
    """That the cold side prefers another by 0.5 nats is noise; that the engine was as sure of its own is not."""
    for lead, counts in ((0.1, False), (0.5, True), (None, False)):
        one = warm(flipped(3), lead=lead)
        assert found(one, scored(one, behind={3: 0.5})).noise is not counts


@pytest.mark.parametrize("by", [FAR, -FAR])
def test_a_wrong_block_that_flips_no_token_shows_in_the_scores(by: float) -> None:
    """All tokens are the cold ones, and one of them scores otherwise than it ever would."""
    one = warm()
    said = found(one, scored(one, apart={6: by}))
    assert (said.noise, said.failure_class) == (False, FailureClass.CORRUPT)
    assert "the cold answer's tokens, but at token 6" in said.sentence
    assert "differs by 3 nats" in said.sentence
    assert "(tolerance 0.5)" in said.sentence


def test_scores_apart_behind_a_flip_are_wrong_as_well() -> None:
    """The flip itself was a close call."""
    one = warm(flipped(1))
    assert not found(one, scored(one, behind={1: CLOSE}, apart={5: FAR})).noise


@pytest.mark.parametrize("positions", [(0,), (0, 1), (0, 2, 4)])
def test_a_short_match_with_a_known_wrong_answer_proves_nothing(positions: tuple[int, ...]) -> None:
    """Two or three close calls may well go the way that another identity's answer goes."""
    one = warm(flipped(*positions), identities=(Identity("digest-b", None),))
    answers = scored(one, behind=dict.fromkeys(positions, CLOSE), adapter="digest-b")
    other = {question(one, Identity("digest-a", None)): Answer(one.tokens)}
    assert found(one, answers | other).explained


def test_a_match_that_noise_cannot_have_made_needs_no_threshold() -> None:
    """Five tokens that the cold side would not have chosen, all of them an older identity's, each within the band."""
    one = warm(flipped(0, 1, 2, 3, 4), identities=(Identity("digest-b", None),))
    behind = dict.fromkeys(range(5), CLOSE)
    other = {question(one, Identity("digest-a", None)): Answer(one.tokens)}
    answers = scored(one, behind=behind, adapter="digest-b")
    assert found(one, answers).explained
    said = found(one, answers | other)
    assert (said.noise, said.failure_class) == (False, FailureClass.STALE_STATE)
    assert "equals the answer of adapter A" in said.sentence


def test_how_many_flips_a_match_takes_follows_the_noise() -> None:
    """The noisier, the more; never fewer than four; where every token flips nothing is proved."""
    needed = [flips_needed(msgspec.structs.replace(BAND, flips=flips)) for flips in (0.0, 0.001, 0.05, 0.3, 1.0)]
    assert needed == [LEAST_FLIPS, LEAST_FLIPS, 5, 12, None]
    one = Deviation(score=0.0, score_at=0, margin=0.1, margin_at=0, flips=60, places=60)
    assert beyond_chance(one, BAND)
    assert not beyond_chance(one, msgspec.structs.replace(BAND, flips=1.0))


@pytest.mark.parametrize("length", [5, 11])
def test_noise_makes_no_answer_shorter_or_longer(length: int) -> None:
    """All of its tokens may score as they should."""
    one = warm((COLD * 2)[:length])
    assert not found(one, scored(one)).noise


def test_an_answer_may_end_elsewhere_at_a_stop_string_only_behind_another_token() -> None:
    """With the cold tokens as far as it goes, it was cut; behind a close call the string may come earlier."""
    stopping = ResponseOptions(stop=("x",))
    for ids, counts in ((COLD[:5], True), (flipped(3)[:5], False)):
        one = warm(ids, surface=stopping)
        assert found(one, scored(one, behind={3: CLOSE} if not counts else None)).noise is not counts


def test_an_answer_that_the_client_cut_off_is_judged_as_far_as_it_goes() -> None:
    """No length is owed; a wrong score is wrong all the same."""
    one = warm(COLD[:3], aborted=Stage.DECODE)
    assert check_tokens(history(one), scored(one), RULE) == []
    assert not found(one, scored(one, apart={2: FAR})).noise


def test_of_two_identities_the_nearer_one_is_the_answers() -> None:
    """A request that an adapter change overlapped may have been either's."""
    one = warm(identities=(Identity("digest-a", None), Identity("digest-b", None)))
    far = scored(one, apart={2: FAR}, adapter="digest-a")
    assert check_tokens(history(one), far | scored(one, adapter="digest-b"), RULE) == []
    assert not found(one, far | scored(one, apart={1: FAR}, adapter="digest-b")).noise


@pytest.mark.parametrize("surface", [ResponseOptions(answers=2), ResponseOptions(pattern="[a-z]+")])
def test_what_cannot_be_forced_is_judged_by_the_oracles_lead(surface: ResponseOptions) -> None:
    """A grammar's scores and a sampled answer's are not the cold side's; then the lead where they part has to do."""
    one = warm(flipped(3), surface=surface)
    assert scoring_question(one, one.identities[0], longest=LONGEST) is None
    for lead, counts in ((0.1, False), (FAR, True)):
        own = tuple(Token(id=i, at=0.0, gap=lead) for i in COLD)
        said = found(one, {question(one, one.identities[0]): Answer(own)})
        assert (said.noise, said.explained) == (not counts, False)


def test_a_model_without_room_scores_all_but_the_last_token() -> None:
    """The engine takes a prompt and one token more, and no longer."""
    one = warm()
    whole = scoring_question(one, one.identities[0], longest=LONGEST)
    cut = scoring_question(one, one.identities[0], longest=len(one.prompt) + len(COLD))
    assert whole is not None
    assert cut is not None
    assert (whole.prompt, cut.prompt) == ((*PROMPT, *COLD), (*PROMPT, *COLD[:-1]))
    assert scoring_question(one, one.identities[0], longest=len(one.prompt) + 1) is None


def test_where_no_best_token_is_told_the_cold_answers_own_is_the_best() -> None:
    """As far as the text before it is the same."""
    one = warm(flipped(3))
    own = Answer(tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD))
    cold = Answer((), prompt_logprobs=(*[None] * len(PROMPT), *[-1.0] * 3, -4.0, *[-1.0] * 4))
    made = deviation(places(one.tokens, len(PROMPT), cold, own))
    assert made is not None
    assert (made.margin, made.margin_at, made.flips) == (pytest.approx(3.1), 3, 1)
    assert deviation(places(one.tokens, len(PROMPT), Answer(()), own)) is None


def test_without_any_noise_no_deviation_is_allowed() -> None:
    """A band of nothing: everything above nothing is beyond it."""
    none = msgspec.structs.replace(BAND, score_nats=0.0, margin_nats=0.0)
    one = Deviation(score=1e-6, score_at=0, margin=None, margin_at=0, flips=0, places=1)
    assert excess(one, none) > 1
    assert excess(msgspec.structs.replace(one, score=0.0), none) == 0.0


@pytest.mark.parametrize("unknown", ["the best token", "the token's score", "all scores"])
def test_a_divergence_whose_scores_are_unknown_is_explained_by_nothing(unknown: str) -> None:
    """It counted as agreement."""
    one = warm(flipped(3))
    answers = scored(one, behind={3: CLOSE})
    (key,) = [asked for asked in answers if asked.surface.prompt_logprobs]
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
    (said,) = check_tokens(history(one), answers, RULE)
    assert (said.noise, said.explained, said.position) == (True, False, 3)
    known = scored(one, behind={3: CLOSE})
    known[key] = msgspec.structs.replace(known[key], prompt_best=None)  # then the cold answer's own score is the best
    (said,) = check_tokens(history(one), known, RULE)
    assert said.explained


def test_the_surfaces_scores_have_bands_of_their_own() -> None:
    """A prompt's unlikely tokens move further than an answer's likely ones."""
    assert (tolerance(RULE), prompt_tolerance(RULE)) == (0.5, 0.9)
    asked = ResponseOptions(prompt_logprobs=True)
    one = warm(surface=asked, prompt_logprobs=(None, *[-1.7] * (len(PROMPT) - 1)))
    cold = scored(one)
    key = question(one, one.identities[0])
    answers = cold | {key: msgspec.structs.replace(cold[key], prompt_logprobs=(None, *[-1.0] * (len(PROMPT) - 1)))}
    assert check_surface(history(one), answers, RULE) == []
    strict = msgspec.structs.replace(RULE, band=msgspec.structs.replace(BAND, prompt_nats=0.6))
    assert len(check_surface(history(one), answers, strict)) == 1


class Cold(Oracle):
    """An oracle that remembers what it was asked."""

    name = "cold-engine"

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Answer:
        """From what it was given; anything else is answered with nothing. A known answer is not asked for again."""
        if question not in self.asked:
            self.asked.append(question)
        return self.answers.get(question, Answer(()))


def judged_by(rule: Rule, one: Outcome, answers: Answers) -> tuple[list[Question], History]:
    """What the judge asked about a request."""
    oracle, seen = Cold(answers), history(one)
    judgement = judge(seen, oracle, rule, exclusive=True)
    assert judge_again(seen, judgement.answers, rule, exclusive=True) == judgement
    return oracle.asked, seen


def about_prefix(one: Outcome, answers: Answers, rule: Rule) -> list[Question]:
    """What shows whether the answer depends on the cached tokens."""
    return sensitivity_questions(history(one), answers, rule)


def test_the_judge_has_every_answer_scored_only_where_scores_are_the_rule() -> None:
    """The exact rule costs what it did."""
    one = warm()
    answers = scored(one)
    asked, _ = judged_by(RULE, one, answers)
    assert set(asked) == {*answers, *about_prefix(one, answers, RULE)}
    exact, _ = judged_by(Rule(exact=True), one, answers)
    assert exact == [question(one, one.identities[0]), *about_prefix(one, answers, Rule(exact=True))]


def test_the_judge_asks_whose_an_answer_is_only_where_noise_is_no_explanation() -> None:
    """One close call is nobody's; a far token, or many, may be another identity's."""
    calm = warm(flipped(3))
    assert len(judged_by(RULE, calm, scored(calm, behind={3: CLOSE}))[0]) == 3
    many = warm(flipped(0, 1, 2, 3, 4))
    assert len(judged_by(RULE, many, scored(many, behind=dict.fromkeys(range(5), CLOSE)))[0]) > 3
    assert len(judged_by(RULE, calm, scored(calm, behind={3: FAR}))[0]) > 3


def test_what_noise_explains_does_not_stand_in_the_way_of_a_verdict() -> None:
    """It is counted and told; what it does not explain, and does not count, does stand in the way."""
    wanted = Requirement("REUSE-1", "", (), ())
    for explained, verdict in ((True, Verdict.CONFORMS), (False, Verdict.INCONCLUSIVE)):
        trial = Trial(wanted, "default", "", "test")
        one = warm(flipped(3))
        rule = msgspec.structs.replace(RULE, cold=ColdAnswers(rate=Rate(4000, 40)))
        judgement = judge_again(history(one), scored(one, behind={3: CLOSE}), rule, exclusive=True)
        noise = tuple(msgspec.structs.replace(said, explained=explained) for said in judgement.noise)
        assert noise
        trial.add(msgspec.structs.replace(judgement, noise=noise))
        given, reason = verdict_without_case(trial, None, RULE)
        assert given is verdict
        assert ("1 answers diverged" in reason) is explained


def test_the_rule_says_what_it_allows_and_how_often_that_is_wrong() -> None:
    """In the words of the report."""
    assert "0.5 nats" in str(RULE)
    assert "0.8 nats" in str(RULE)
    assert "at most one of 1,000,000 requests" in str(RULE)
