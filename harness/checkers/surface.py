"""Whatever a request asked for beside plain tokens must be complete, and equal to what a cold start gives."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.base import Token
from harness.checkers.finding import Finding, Rule
from harness.checkers.tokens import closest
from harness.history import History, Outcome
from harness.moved import may_be_changed
from harness.oracle.base import Answer, Answers, judged
from reports.schema import FailureClass

# Between a score from a hit and one from a cold start. Another order of float32 additions moves a score by some 1e-6;
# a wrong block moves it by tenths and more.
SCORE_NATS = 0.02
TEXT_END = 20  # characters of a text that a sentence quotes


def check_surface(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Missing, short or wrong answers, scores, ends and prompts."""
    found: list[Finding] = []
    chats = {number for number, _, request in history.workload.requests() if request.chat}
    changed = may_be_changed(history) if rule.lossy else frozenset()
    for outcome in judged(history):
        if outcome.answered:
            found += prompt_as_rendered(outcome)
            expected = closest(outcome, answers)
            if outcome.request not in chats and other_text(outcome, expected):
                found.append(finding(outcome, FailureClass.API, text_words(outcome.text, expected.text or "")))
            for failure_class, words in differences(outcome, expected, tolerance(rule), prompt_tolerance(rule)):
                if outcome.request in changed and failure_class is FailureClass.CORRUPT:
                    continue  # other scores may be the mode's; none, or another end, are not
                # A sampled answer may part anywhere once scores wobble; without an exact rule it proves nothing.
                noise = not rule.exact and outcome.surface.answers > 1
                found.append(finding(outcome, failure_class, words, noise=noise))
    return found


def tolerance(rule: Rule) -> float:
    """How far scores of an answer may lie apart, in nats."""
    if rule.band is not None:
        return max(SCORE_NATS, rule.band.score_nats)
    return SCORE_NATS if rule.exact or rule.noise is None else max(SCORE_NATS, 2 * rule.noise)


def prompt_tolerance(rule: Rule) -> float:
    """How far scores of a prompt may: of unlikely tokens, which noise moves further."""
    return tolerance(rule) if rule.band is None else max(SCORE_NATS, rule.band.prompt_nats)


def prompt_as_rendered(outcome: Outcome) -> list[Finding]:
    """The engine must have answered the prompt that it was asked."""
    if outcome.rendered is None or outcome.rendered == outcome.prompt:
        return []
    return [finding(outcome, FailureClass.API, "was answered, as the engine says itself, for another prompt")]


def other_text(outcome: Outcome, expected: Answer) -> bool:
    """Whether the tokens are the cold ones and the text is not. A chat's text is its template's and parser's as well,
    which the oracle does not go through."""
    return expected.text is not None and outcome.token_ids == expected.ids and outcome.text != expected.text


def text_words(mine: str, cold: str) -> str:
    """The rest of the sentence: the ends of both, for there they part most often."""
    return f"got the cold answer's tokens and not its text, which ends with {cold[-TEXT_END:]!r}: {mine[-TEXT_END:]!r}"


def differences(
    outcome: Outcome, expected: Answer, allowed: float, allowed_in_prompt: float
) -> Iterator[tuple[FailureClass, str]]:
    """(class, rest of the sentence) for each thing that is not as cold."""
    wanted = outcome.surface.answers
    if 1 + len(outcome.others) != wanted:
        yield FailureClass.API, f"asked for {wanted} answers and got {1 + len(outcome.others)}"
    for i, (mine, cold) in enumerate(zip(outcome.others, expected.others, strict=False), 1):
        if ids(mine) != ids(cold):
            yield FailureClass.CORRUPT, f"got an answer {i} that differs from the cold one, seed and all else equal"
    if outcome.token_ids == expected.ids and expected.finish_reason not in (None, outcome.finish_reason):
        ends = f"{outcome.finish_reason!r} instead of {expected.finish_reason!r}"
        yield FailureClass.API, f"ended with finish reason {ends}"
    if outcome.surface.prompt_logprobs:
        yield from prompt_scores(outcome, expected, allowed_in_prompt)
    if outcome.surface.logprobs and outcome.token_ids == expected.ids:
        pairs = [(a.logprob, b.logprob) for a, b in zip(outcome.tokens, expected.tokens, strict=True)]
        missing = [i for i, (mine, cold) in enumerate(pairs) if mine is None and cold is not None]
        if missing:
            which = f"{len(missing)} of its {len(pairs)} tokens, the first of them token {missing[0]}"
            yield FailureClass.API, f"got no logprob for {which}"
        apart = furthest(pairs)
        if apart > allowed:
            yield FailureClass.CORRUPT, f"got logprobs up to {apart:.3f} nats from the cold ones"


def prompt_scores(outcome: Outcome, expected: Answer, allowed: float) -> Iterator[tuple[FailureClass, str]]:
    """One score for each prompt token but the first, close to the cold ones."""
    mine, cold = outcome.prompt_logprobs or (), expected.prompt_logprobs or ()
    known = sum(score is not None for score in mine)
    if len(mine) != len(outcome.prompt) or known != len(outcome.prompt) - 1:
        yield (
            FailureClass.API,
            f"got prompt logprobs for {known} of {len(outcome.prompt) - 1} tokens after the first",
        )
    elif len(cold) == len(mine):
        apart = furthest(list(zip(mine, cold, strict=True)))
        if apart > allowed:
            yield FailureClass.CORRUPT, f"got prompt logprobs up to {apart:.3f} nats from the cold ones"


def furthest(pairs: list[tuple[float | None, float | None]]) -> float:
    """The largest difference where both sides have a score."""
    return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


def ids(tokens: tuple[Token, ...]) -> tuple[int, ...]:
    """Token ids alone."""
    return tuple(token.id for token in tokens)


def finding(outcome: Outcome, failure_class: FailureClass, words: str, *, noise: bool = False) -> Finding:
    """About one request."""
    return Finding(
        checker="surface",
        failure_class=failure_class,
        request=outcome.request,
        sentence=f"Request {outcome.request} to '{outcome.model}' {words}.",
        noise=noise,
    )
