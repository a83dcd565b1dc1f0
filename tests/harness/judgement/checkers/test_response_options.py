"""Everything that was requested beside tokens must be there, complete and as cold.

Each missing part is a separate finding.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import ask, burst, history, outcome, tokens

from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions, Stage, Token
from coldproof.harness.features.options.checks import SCORE_NATS, check_response_options, tolerance
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
    """Return the findings about a request whose cold answer has these fields."""
    answer = Answer(**{"tokens": tokens(*COLD), "finish_reason": "length", **cold})
    return check_response_options(history(one), {question(one, one.identities[0]): answer}, rule)


def sent(response_options: ResponseOptions = PLAIN, answer: tuple[int, ...] = COLD, **changes: Any) -> Outcome:
    """Return a request with these response options, which is answered as cold unless `changes` says otherwise."""
    return outcome(0, PROMPT, answer, options=response_options, **changes)


def only(found: list[Finding]) -> tuple[FailureClass, str]:
    """Return the class and the sentence of the only finding."""
    (one,) = found
    assert (one.checker, one.request) == ("response options", 0)
    return one.failure_class, one.sentence


@pytest.mark.parametrize(
    ("response_options", "mine", "cold"),
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
def test_what_is_as_cold_is_no_finding(
    response_options: ResponseOptions, mine: dict[str, Any], cold: dict[str, Any]
) -> None:
    """A finish reason or a rendered prompt that is not reported is not compared."""
    assert checked(sent(response_options, **mine), **cold) == []


@pytest.mark.parametrize("others", [(), OTHERS[:1], (*OTHERS, tokens(1))])
def test_a_wrong_number_of_answers_is_an_api_failure(others: tuple[tuple[Token, ...], ...]) -> None:
    """There are too few or too many."""
    failure, sentence = only(checked(sent(SEVERAL, others=others), others=OTHERS))
    assert failure is FailureClass.API
    assert f"requested 3 answers and got {1 + len(others)}" in sentence


def test_any_other_answer_may_be_the_wrong_one() -> None:
    """It is named by its number."""
    failure, sentence = only(checked(sent(SEVERAL, others=(OTHERS[0], tokens(7, 8, 1))), others=OTHERS))
    assert failure is FailureClass.CORRUPT
    assert "an answer 2 that differs" in sentence


@pytest.mark.parametrize(("rule", "noise"), [(EXACT, False), (MARGIN, True)])
def test_sampled_answers_prove_something_only_under_an_exact_rule(rule: Rule, noise: bool) -> None:
    """If scores vary, a sampled answer may diverge anywhere."""
    (one,) = checked(sent(SEVERAL, others=(OTHERS[0], tokens(7, 8, 1))), rule, others=OTHERS)
    assert one.noise is noise


def test_an_answer_that_ends_for_another_reason_is_an_api_failure() -> None:
    """Its tokens are equal, so only its end is wrong."""
    failure, sentence = only(checked(sent(STOP), finish_reason="stop"))
    assert failure is FailureClass.API
    assert "finish reason 'length' instead of 'stop'" in sentence


def test_an_answer_of_other_tokens_may_end_in_another_way() -> None:
    """The token check reports the difference once. The scores are not compared either."""
    assert checked(sent(STOP, (1, 2, 9)), finish_reason="stop") == []
    far = tuple(Token(id=i, at=0.0, logprob=-9.0) for i in (1, 2, 9))
    near = tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD)
    assert checked(sent(SCORED, tokens=far), tokens=near) == []


@pytest.mark.parametrize(
    ("scores", "known"),
    [(None, 0), ((), 0), (SCORES[:3], 2), ((*SCORES, -5.0), 5), ((None, None, -2.0, -3.0, -4.0), 3), (SCORES[1:], 4)],
)
def test_each_prompt_token_but_the_first_needs_a_score(scores: Any, known: int) -> None:
    """Tokens that came from the cache are no exception."""
    failure, sentence = only(checked(sent(PROMPT_SCORED, prompt_logprobs=scores), prompt_logprobs=SCORES))
    assert failure is FailureClass.API
    assert f"prompt logprobs for {known} of 4 tokens after the first" in sentence


def moved(by: float) -> tuple[float | None, ...]:
    """Return the scores of the prompt with one of them changed by this much."""
    return (*SCORES[:3], -3.0 - by, *SCORES[4:])


@pytest.mark.parametrize("by", [SCORE_NATS / 2, -SCORE_NATS / 2, 0.0])
def test_scores_may_differ_by_the_order_of_additions(by: float) -> None:
    """This holds for the scores of the prompt and of the answer."""
    assert checked(sent(PROMPT_SCORED, prompt_logprobs=moved(by)), prompt_logprobs=SCORES) == []
    answers = [tuple(Token(id=i, at=0.0, logprob=-1.0 - shift) for i in COLD) for shift in (0.0, by)]
    assert checked(sent(SCORED, tokens=answers[1]), tokens=answers[0]) == []


@pytest.mark.parametrize("by", [2 * SCORE_NATS, -2 * SCORE_NATS, 3.0])
def test_scores_that_differ_by_more_are_corrupt(by: float) -> None:
    """A wrong block changes a score by tenths and more. The sentence has the difference."""
    failure, sentence = only(checked(sent(PROMPT_SCORED, prompt_logprobs=moved(by)), prompt_logprobs=SCORES))
    assert failure is FailureClass.CORRUPT
    assert f"got prompt logprobs that differ from the cold ones by up to {abs(by):.3f} nats" in sentence
    answers = [tuple(Token(id=i, at=0.0, logprob=-1.0 - shift) for i in COLD) for shift in (0.0, by)]
    failure, sentence = only(checked(sent(SCORED, tokens=answers[1]), tokens=answers[0]))
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
def test_the_tolerance_of_scores_follows_the_noise(rule: Rule, allowed: float) -> None:
    """It is twice the calibrated noise, because both sides vary, but at least what the order of additions needs."""
    assert tolerance(rule) == pytest.approx(allowed)
    for by, count in ((allowed * 0.9, 0), (allowed * 1.1, 1)):
        found = checked(sent(PROMPT_SCORED, prompt_logprobs=moved(by)), rule, prompt_logprobs=SCORES)
        assert [f.noise for f in found] == [False] * count


@pytest.mark.parametrize("missing", [(0,), (2,), (0, 1, 2)])
def test_a_score_that_the_cold_answer_has_and_this_one_lacks_is_an_api_failure(missing: tuple[int, ...]) -> None:
    """A score that both lack, or that only the cold answer lacks, is not missing."""
    whole = tuple(Token(id=i, at=0.0, logprob=-1.0) for i in COLD)
    lacking = tuple(Token(t.id, 0.0) if i in missing else t for i, t in enumerate(whole))
    failure, sentence = only(checked(sent(SCORED, tokens=lacking), tokens=whole))
    assert failure is FailureClass.API
    assert f"no logprob for {len(missing)} of its 3 tokens (first: token {missing[0]})" in sentence
    assert checked(sent(SCORED, tokens=lacking), tokens=lacking) == []
    assert checked(sent(SCORED, tokens=whole), tokens=lacking) == []


def test_the_text_of_the_cold_tokens_is_the_cold_text() -> None:
    """If a stop string is left in the text, its tokens are right and the text is wrong."""
    failure, sentence = only(checked(sent(STOP, text="bca"), text="bc"))
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
    ids=["equal", "no cold text", "other tokens", "aborted"],
)
def test_texts_that_need_not_agree_are_not_compared(mine: dict[str, Any], cold: dict[str, Any]) -> None:
    """The token check reports other tokens."""
    assert checked(sent(**mine), **cold) == []


def test_the_text_of_a_chat_is_not_compared() -> None:
    """The oracle gets tokens after tokens, by another entry point."""
    one = sent(text="abc")
    answers = {question(one, one.identities[0]): Answer(tokens(*COLD), finish_reason="length", text="xyz")}
    for chat, count in ((True, 0), (False, 1)):
        steps = Workload((burst(ask(chat=chat)),))
        assert len(check_response_options(history(one, workload=steps), answers, EXACT)) == count


def test_scores_that_the_oracle_does_not_give_are_not_compared() -> None:
    """They must still be complete."""
    assert checked(sent(PROMPT_SCORED, prompt_logprobs=moved(3.0)), prompt_logprobs=None) == []
    assert len(checked(sent(PROMPT_SCORED, prompt_logprobs=SCORES[:2]), prompt_logprobs=None)) == 1


def test_an_answer_to_another_prompt_is_an_api_failure() -> None:
    """The engine itself reports the prompt, so the tokens do not matter."""
    failure, sentence = only(checked(sent(rendered=tuple(range(101, 106)))))
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
    """A request that was aborted or failed needs neither scores nor an end."""
    assert checked(sent(PROMPT_SCORED, **changes), prompt_logprobs=SCORES) == []


def test_an_overlapped_answer_is_compared_with_its_version() -> None:
    """A request that an adapter change overlapped may be of either version, and its end must be that version's."""
    both = (Identity("digest-a", None), Identity("digest-b", None))
    one = sent(STOP, (4, 5, 6), adapter="digest-a", identities=both)
    answers = {
        question(one, both[0]): Answer(tokens(*COLD), finish_reason="length"),
        question(one, both[1]): Answer(tokens(4, 5, 6), finish_reason="stop"),
    }
    assert only(check_response_options(history(one), answers, EXACT))[1].endswith("'length' instead of 'stop'.")


def test_findings_about_response_options_reach_the_judgement_and_noise_is_separate() -> None:
    """Noise only makes a verdict inconclusive."""
    one = sent(SEVERAL, others=(OTHERS[0], tokens(7, 8, 1)))
    answers = {question(one, one.identities[0]): Answer(tokens(*COLD), others=OTHERS)}
    for rule, count, noise in ((EXACT, 1, 0), (MARGIN, 0, 1)):
        judged = judge_again(history(one), answers, rule, exclusive=True)
        assert (len(judged.findings), len(judged.noise)) == (count, noise)
