"""Whatever was asked for beside tokens must be there, whole and as cold; each thing that is not is said by itself."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import ask, burst, history, outcome, tokens

from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions, Stage, Token
from coldproof.harness.features.options.checks import SCORE_NATS, check_surface, tolerance
from coldproof.harness.history.records import Identity, Outcome
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.oracle import Answer, question
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Workload

PROMPT = range(100, 105)
COLD = (1, 2, 3)
EXACT, MARGIN = Rule(exact=True), Rule(exact=False, noise=0.2)
SEVERAL, STOP, SCORED = ResponseOptions(answers=3), ResponseOptions(stop=("a",)), ResponseOptions(logprobs=True)
PROMPT_SCORED = ResponseOptions(prompt_logprobs=True)
SCORES = (None, -1.0, -2.0, -3.0, -4.0)
OTHERS = (tokens(4, 5, 6), tokens(7, 8, 9))


def checked(one: Outcome, rule: Rule = EXACT, **cold: Any) -> list[Finding]:
    """What is said of one request whose cold answer is like this."""
    answer = Answer(**{"tokens": tokens(*COLD), "finish_reason": "length", **cold})
    return check_surface(history(one), {question(one, one.identities[0]): answer}, rule)


def asked(surface: ResponseOptions = PLAIN, answer: tuple[int, ...] = COLD, **changes: Any) -> Outcome:
    """A request with this surface, answered as cold unless said otherwise."""
    return outcome(0, PROMPT, answer, surface=surface, **changes)


def said(found: list[Finding]) -> tuple[FailureClass, str]:
    """The one finding's class and sentence."""
    (one,) = found
    assert (one.checker, one.request) == ("surface", 0)
    return one.failure_class, one.sentence


@pytest.mark.parametrize(
    ("surface", "mine", "cold"),
    [
        (PLAIN, {}, {}),
        (SEVERAL, {"others": OTHERS}, {"others": OTHERS}),
        (STOP, {"finish_reason": "stop"}, {"finish_reason": "stop"}),
        (ResponseOptions(pattern="[ab]"), {"finish_reason": "stop"}, {"finish_reason": "stop"}),
        (PROMPT_SCORED, {"prompt_logprobs": SCORES}, {"prompt_logprobs": SCORES}),
        (SCORED, {}, {}),
        (PLAIN, {"rendered": tuple(PROMPT)}, {}),
        (PLAIN, {"rendered": None}, {"finish_reason": None}),
    ],
)
def test_what_is_as_cold_is_no_finding(surface: ResponseOptions, mine: dict[str, Any], cold: dict[str, Any]) -> None:
    """Of each kind; a reason or a rendering that nobody tells is not compared."""
    assert checked(asked(surface, **mine), **cold) == []


@pytest.mark.parametrize("others", [(), OTHERS[:1], (*OTHERS, tokens(1))])
def test_a_wrong_number_of_answers_is_an_api_failure(others: tuple[tuple[Token, ...], ...]) -> None:
    """Too few or too many."""
    failure, sentence = said(checked(asked(SEVERAL, others=others), others=OTHERS))
    assert failure is FailureClass.API
    assert f"requested 3 answers and got {1 + len(others)}" in sentence


def test_any_other_answer_may_be_the_wrong_one() -> None:
    """Named by its number."""
    failure, sentence = said(checked(asked(SEVERAL, others=(OTHERS[0], tokens(7, 8, 1))), others=OTHERS))
    assert failure is FailureClass.CORRUPT
    assert "an answer 2 that differs" in sentence


@pytest.mark.parametrize(("rule", "noise"), [(EXACT, False), (MARGIN, True)])
def test_sampled_answers_prove_something_only_under_an_exact_rule(rule: Rule, noise: bool) -> None:
    """Once scores wobble, a sampled answer may part anywhere."""
    (one,) = checked(asked(SEVERAL, others=(OTHERS[0], tokens(7, 8, 1))), rule, others=OTHERS)
    assert one.noise is noise


def test_an_answer_that_ends_for_another_reason_is_an_api_failure() -> None:
    """Its tokens equal, so that its end alone is wrong."""
    failure, sentence = said(checked(asked(STOP), finish_reason="stop"))
    assert failure is FailureClass.API
    assert "finish reason 'length' instead of 'stop'" in sentence


def test_an_answer_of_other_tokens_may_end_otherwise() -> None:
    """That it differs is the token check's to say, once; so it is with its scores."""
    assert checked(asked(STOP, (1, 2, 9)), finish_reason="stop") == []
    far = tuple(Token(id=i, at=0.0, logprob=-9.0) for i in (1, 2, 9))
    near = tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD)
    assert checked(asked(SCORED, tokens=far), tokens=near) == []


@pytest.mark.parametrize(
    ("scores", "known"),
    [(None, 0), ((), 0), (SCORES[:3], 2), ((*SCORES, -5.0), 5), ((None, None, -2.0, -3.0, -4.0), 3), (SCORES[1:], 4)],
)
def test_a_score_for_each_prompt_token_but_the_first_is_owed(scores: Any, known: int) -> None:
    """Tokens that came from the cache are no exception."""
    failure, sentence = said(checked(asked(PROMPT_SCORED, prompt_logprobs=scores), prompt_logprobs=SCORES))
    assert failure is FailureClass.API
    assert f"prompt logprobs for {known} of 4 tokens after the first" in sentence


def moved(by: float) -> tuple[float | None, ...]:
    """The prompt's scores, one of them moved."""
    return (*SCORES[:3], -3.0 - by, *SCORES[4:])


@pytest.mark.parametrize("by", [SCORE_NATS / 2, -SCORE_NATS / 2, 0.0])
def test_scores_may_differ_by_the_order_of_additions(by: float) -> None:
    """Of the prompt and of the answer."""
    assert checked(asked(PROMPT_SCORED, prompt_logprobs=moved(by)), prompt_logprobs=SCORES) == []
    answers = [tuple(Token(id=i, at=0.0, logprob=-1.0 - shift) for i in COLD) for shift in (0.0, by)]
    assert checked(asked(SCORED, tokens=answers[1]), tokens=answers[0]) == []


@pytest.mark.parametrize("by", [2 * SCORE_NATS, -2 * SCORE_NATS, 3.0])
def test_scores_that_lie_further_apart_are_corrupt(by: float) -> None:
    """A wrong block moves a score by tenths and more; the sentence says by how much."""
    failure, sentence = said(checked(asked(PROMPT_SCORED, prompt_logprobs=moved(by)), prompt_logprobs=SCORES))
    assert failure is FailureClass.CORRUPT
    assert f"got prompt logprobs that differ from the cold ones by up to {abs(by):.3f} nats" in sentence
    answers = [tuple(Token(id=i, at=0.0, logprob=-1.0 - shift) for i in COLD) for shift in (0.0, by)]
    failure, sentence = said(checked(asked(SCORED, tokens=answers[1]), tokens=answers[0]))
    assert failure is FailureClass.CORRUPT
    assert f"got logprobs that differ from the cold ones by up to {abs(by):.3f} nats" in sentence


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (EXACT, SCORE_NATS),
        (Rule(exact=False, noise=None), SCORE_NATS),
        (Rule(exact=False, noise=SCORE_NATS / 4), SCORE_NATS),
        (Rule(exact=False, noise=0.2), 0.4),
    ],
)
def test_how_far_scores_may_lie_apart_follows_the_noise(rule: Rule, allowed: float) -> None:
    """Twice what the calibration saw, for both sides wobble; never less than the order of additions costs."""
    assert tolerance(rule) == pytest.approx(allowed)
    for by, count in ((allowed * 0.9, 0), (allowed * 1.1, 1)):
        found = checked(asked(PROMPT_SCORED, prompt_logprobs=moved(by)), rule, prompt_logprobs=SCORES)
        assert [f.noise for f in found] == [False] * count


@pytest.mark.parametrize("missing", [(0,), (2,), (0, 1, 2)])
def test_a_score_that_the_cold_answer_has_and_this_one_lacks_is_an_api_failure(missing: tuple[int, ...]) -> None:
    """Wherever it is; one that neither has is nobody's, nor is one that the cold answer lacks."""
    whole = tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD)
    lacking = tuple(Token(t.id, 0.0) if i in missing else t for i, t in enumerate(whole))
    failure, sentence = said(checked(asked(SCORED, tokens=lacking), tokens=whole))
    assert failure is FailureClass.API
    assert f"no logprob for {len(missing)} of its 3 tokens (first: token {missing[0]})" in sentence
    assert checked(asked(SCORED, tokens=lacking), tokens=lacking) == []
    assert checked(asked(SCORED, tokens=whole), tokens=lacking) == []


def test_the_text_of_the_cold_tokens_is_the_cold_text() -> None:
    """A stop string that was left in it is none of the tokens' fault."""
    failure, sentence = said(checked(asked(STOP, text="bca"), text="bc"))
    assert failure is FailureClass.API
    assert "a different text: it ends with 'bca' instead of 'bc'" in sentence


@pytest.mark.parametrize(
    ("mine", "cold"),
    [
        ({"text": "abc"}, {"text": "abc"}),
        ({"text": "abc"}, {"text": None}),
        ({"text": "abc", "answer": (1, 2, 9)}, {"text": "xyz"}),
        ({"text": "abc", "aborted": Stage.DECODE, "finish_reason": None}, {"text": "xyz"}),
    ],
    ids=["equal", "no engine was asked", "other tokens", "aborted"],
)
def test_texts_that_need_not_agree_are_not_compared(mine: dict[str, Any], cold: dict[str, Any]) -> None:
    """Other tokens are the token check's to speak of."""
    assert checked(asked(**mine), **cold) == []


def test_the_text_of_a_chat_is_its_parsers_too() -> None:
    """The oracle is asked for tokens behind tokens, and by another entry point."""
    one = asked(text="abc")
    answers = {question(one, one.identities[0]): Answer(tokens(*COLD), finish_reason="length", text="xyz")}
    for chat, count in ((True, 0), (False, 1)):
        steps = Workload((burst(ask(chat=chat)),))
        assert len(check_surface(history(one, workload=steps), answers, EXACT)) == count


def test_scores_that_the_oracle_does_not_give_are_not_compared() -> None:
    """But they have to be whole."""
    assert checked(asked(PROMPT_SCORED, prompt_logprobs=moved(3.0)), prompt_logprobs=None) == []
    assert len(checked(asked(PROMPT_SCORED, prompt_logprobs=SCORES[:2]), prompt_logprobs=None)) == 1


def test_an_answer_to_another_prompt_is_an_api_failure() -> None:
    """By the engine's own words, whatever its tokens."""
    failure, sentence = said(checked(asked(rendered=tuple(range(101, 106)))))
    assert failure is FailureClass.API
    assert "to a different prompt" in sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"aborted": Stage.DECODE, "finish_reason": None},
        {"error": "HTTP 500", "finish_reason": None},
        {"error": "HTTP 400", "refused": True},
    ],
)
def test_what_was_not_answered_is_not_compared(changes: dict[str, Any]) -> None:
    """Neither scores nor ends are owed to whoever hung up."""
    assert checked(asked(PROMPT_SCORED, **changes), prompt_logprobs=SCORES) == []


def test_the_version_that_answered_is_the_one_to_compare_with() -> None:
    """A request that an adapter change overlapped may be of either; its end has to be that one's."""
    both = (Identity("digest-a", None), Identity("digest-b", None))
    one = asked(STOP, (4, 5, 6), adapter="digest-a", identities=both)
    answers = {
        question(one, both[0]): Answer(tokens(*COLD), finish_reason="length"),
        question(one, both[1]): Answer(tokens(4, 5, 6), finish_reason="stop"),
    }
    assert said(check_surface(history(one), answers, EXACT))[1].endswith("'length' instead of 'stop'.")


def test_findings_about_surfaces_reach_the_judgement_and_noise_stays_apart() -> None:
    """What counts and what only makes a verdict inconclusive."""
    one = asked(SEVERAL, others=(OTHERS[0], tokens(7, 8, 1)))
    answers = {question(one, one.identities[0]): Answer(tokens(*COLD), others=OTHERS)}
    for rule, count, noise in ((EXACT, 1, 0), (MARGIN, 0, 1)):
        judged = judge_again(history(one), answers, rule, exclusive=True)
        assert (len(judged.findings), len(judged.noise)) == (count, noise)
