"""Checks that everything a request asked for besides plain tokens is complete and equals the cold answer."""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.requests import ids_of
from coldproof.harness.history.non_prefix_reuse import may_be_changed
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.sampled_answers import with_rounding
from coldproof.harness.judgement.checkers.tokens import closest
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import Answer, Answers, comparable_outcomes
from coldproof.harness.schema.verdict import FailureClass

# Tolerance between the logprob of a hit and that of a cold start. A different order of float32 additions changes it by
# about 1e-6; a wrong block changes it by tenths and more.
SCORE_NATS = 0.02
TEXT_END = 20  # characters of a text that a finding quotes


@check(
    "response options",
    order=50,
    fails=(
        "Logprobs, finish reasons, texts or additional answers that are missing, incomplete or different from the "
        "cold ones; an answer to a different prompt than the one sent."
    ),
)
def check_response_options(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Return a finding for each missing, incomplete or wrong answer, logprob, finish reason, text and prompt."""
    found: list[Finding] = []
    chats = {number for number, _, request in history.workload.requests() if request.chat}
    changed = may_be_changed(history) if rule.lossy else frozenset()
    for outcome in comparable_outcomes(history):
        if outcome.answered:
            if outcome.rendered not in (None, outcome.prompt):
                words = "got an answer to a different prompt, as the engine itself reports"
                found.append(finding(outcome, FailureClass.API, words))
            expected = closest(outcome, answers)
            if outcome.request not in chats and has_other_text(outcome, expected):
                found.append(finding(outcome, FailureClass.API, describe_texts(outcome.text, expected.text or "")))
            found += [
                one
                for one in other_answers(history, outcome, expected, answers, rule)
                if outcome.request not in changed or one.failure_class is not FailureClass.CORRUPT
            ]
            for failure_class, words in differences(outcome, expected, tolerance(rule), prompt_tolerance(rule)):
                if outcome.request in changed and failure_class is FailureClass.CORRUPT:
                    continue  # the mode may change scores; it may not omit them or change the finish reason
                found.append(finding(outcome, failure_class, words))
    return found


def other_answers(
    history: History, outcome: Outcome, expected: Answer, answers: Answers, rule: Rule
) -> Iterator[Finding]:
    """Yield a finding for each further answer that is missing or differs from the cold one with the same seed."""
    wanted = outcome.options.answers
    if 1 + len(outcome.others) != wanted:
        words = f"requested {wanted} answers and got {1 + len(outcome.others)}"
        yield finding(outcome, FailureClass.API, words)
    for number, (warm, cold) in enumerate(zip(outcome.others, expected.others, strict=False), 1):
        if ids_of(warm) != ids_of(cold):
            words = f"got an answer {number} that differs from the cold one with the same seed"
            # With nondeterministic scores a sampled answer may diverge at any token.
            made = finding(outcome, FailureClass.CORRUPT, words, noise=not rule.exact)
            longest = history.shape.max_model_tokens
            yield with_rounding(made, outcome, expected, number, answers, rule, longest=longest)


def tolerance(rule: Rule) -> float:
    """Return the tolerance for the logprobs of an answer, in nats."""
    if rule.band is not None:
        return max(SCORE_NATS, rule.band.score_nats)
    if rule.exact or rule.noise is None:
        return max(SCORE_NATS, rule.cold.rounded_by)
    return max(SCORE_NATS, 2 * rule.noise)


def prompt_tolerance(rule: Rule) -> float:
    """Return the tolerance for prompt logprobs, in nats. Noise changes those of unlikely tokens more."""
    return tolerance(rule) if rule.band is None else max(SCORE_NATS, rule.band.prompt_nats)


def has_other_text(outcome: Outcome, expected: Answer) -> bool:
    """Return whether the tokens equal the cold ones but the text does not. Not for chats: a template changes theirs."""
    return expected.text is not None and outcome.token_ids == expected.ids and outcome.text != expected.text


def describe_texts(warm: str, cold: str) -> str:
    """Return the rest of the sentence. It quotes the ends of both texts, where they differ most often."""
    ends = f"it ends with {warm[-TEXT_END:]!r} instead of {cold[-TEXT_END:]!r}"
    return f"got the cold answer's tokens but a different text: {ends}"


def differences(
    outcome: Outcome, expected: Answer, allowed: float, allowed_in_prompt: float
) -> Iterator[tuple[FailureClass, str]]:
    """Yield (failure class, rest of the sentence) for each difference from the cold answer."""
    if outcome.token_ids == expected.ids and expected.finish_reason not in (None, outcome.finish_reason):
        ends = f"{outcome.finish_reason!r} instead of {expected.finish_reason!r}"
        yield FailureClass.API, f"ended with finish reason {ends}"
    if outcome.options.prompt_logprobs:
        yield from prompt_scores(outcome, expected, allowed_in_prompt)
    if outcome.options.logprobs and outcome.token_ids == expected.ids:
        pairs = [(a.logprob, b.logprob) for a, b in zip(outcome.tokens, expected.tokens, strict=True)]
        missing = [i for i, (warm, cold) in enumerate(pairs) if warm is None and cold is not None]
        if missing:
            which = f"{len(missing)} of its {len(pairs)} tokens (first: token {missing[0]})"
            yield FailureClass.API, f"got no logprob for {which}"
        apart = largest_difference(pairs)
        if apart > allowed:
            yield FailureClass.CORRUPT, f"got logprobs that differ from the cold ones by up to {apart:.3f} nats"


def prompt_scores(outcome: Outcome, expected: Answer, allowed: float) -> Iterator[tuple[FailureClass, str]]:
    """Yield findings if there is not one logprob for each prompt token after the first, close to the cold one."""
    warm, cold = outcome.prompt_logprobs or (), expected.prompt_logprobs or ()
    known = sum(score is not None for score in warm)
    if len(warm) != len(outcome.prompt) or known != len(outcome.prompt) - 1:
        wanted = len(outcome.prompt) - 1
        yield FailureClass.API, f"got prompt logprobs for {known} of {wanted} tokens after the first"
    elif len(cold) == len(warm):
        apart = largest_difference(list(zip(warm, cold, strict=True)))
        if apart > allowed:
            yield FailureClass.CORRUPT, f"got prompt logprobs that differ from the cold ones by up to {apart:.3f} nats"


def largest_difference(pairs: list[tuple[float | None, float | None]]) -> float:
    """Return the largest difference among the pairs in which both scores are known."""
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def finding(outcome: Outcome, failure_class: FailureClass, words: str, *, noise: bool = False) -> Finding:
    """Return the finding about a request; `words` is the rest of its sentence."""
    return Finding(
        checker="response options",
        failure_class=failure_class,
        request=outcome.request,
        sentence=f"Request {outcome.request} to '{outcome.model}' {words}.",
        noise=noise,
    )
