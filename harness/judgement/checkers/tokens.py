"""Checks that every answer equals, token by token, a cold answer under an identity that the request may have had."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.harness.history.computed_tokens import common_prefix, written_tokens
from coldproof.harness.history.non_prefix_reuse import may_be_changed, may_reuse_non_prefix, reusable_tokens
from coldproof.harness.history.records import History, Identity, Outcome
from coldproof.harness.judgement.checkers.noise_tolerance import (
    MATCHED,
    beyond_chance,
    describe_deviation,
    excess,
    measure_deviation,
    too_short_or_long,
)
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import Answer, Answers, comparable_outcomes, distinguishing_question, question
from coldproof.reports.schema.verdict import FailureClass

PROOF = 4  # tokens of two equal answers that rule out chance
ASSUMED_BLOCK = 16  # tokens of a block, if the engine does not report its size


def check_tokens(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Return a finding for each request whose answer, as far as its client read it, equals none of its cold answers.

    An answer that a lossy mode may have changed is only compared with the answers of others: see `Rule`.
    """
    found = []
    changed = may_be_changed(history) if rule.lossy else frozenset()
    for outcome in comparable_outcomes(history):
        expected = closest(outcome, answers)
        if outcome.request in changed:
            if not agrees(outcome, expected):
                match = matches_another(history, outcome, expected, answers)
                found.append(match or changed_by_design(outcome, expected))
            continue
        scored = judge_by_scores(history, outcome, expected, answers, rule)
        if scored is not None:
            found += scored
        elif not agrees(outcome, expected):
            found.append(wrong_answer(history, outcome, expected, answers, rule))
    return found


def judge_by_scores(
    history: History, outcome: Outcome, expected: Answer, answers: Answers, rule: Rule
) -> list[Finding] | None:
    """Return the findings by the scores of both sides; None if the rule has no tolerance or scores are missing."""
    band = rule.band
    one = None if band is None else measure_deviation(history, outcome, answers, band)
    if band is None or one is None:
        return None
    same = agrees(outcome, expected)
    outside = excess(one, band) > 1
    if same and not outside:
        return []
    if same:
        return [score_mismatch(outcome, describe_deviation(one, band))]
    made = wrong_answer(history, outcome, expected, answers, rule)
    matched = made.failure_class in MATCHED
    counted = outside or too_short_or_long(outcome, expected.ids) or (matched and beyond_chance(one, band))
    if not counted:
        said = f"Request {outcome.request} diverges from the cold answer at token {made.position}; the scores of both "
        said += "sides are within the noise tolerance."
        return [msgspec.structs.replace(made, noise=True, explained=True, sentence=said)]
    words = f" By scores, {describe_deviation(one, band)}." if outside else ""
    return [msgspec.structs.replace(made, noise=False, sentence=made.sentence + words)]


def score_mismatch(outcome: Outcome, words: str) -> Finding:
    """Return the finding about an answer with the cold answer's tokens but scores outside of the tolerance."""
    return Finding(
        checker="tokens",
        failure_class=FailureClass.CORRUPT,
        request=outcome.request,
        position=0,
        sentence=f"Request {outcome.request} to '{outcome.model}' got the cold answer's tokens, but {words}.",
    )


def closest(outcome: Outcome, answers: Answers) -> Answer:
    """Return the allowed cold answer that shares the longest prefix with the observed one."""
    allowed = [answers[question(outcome, identity)] for identity in outcome.identities]
    return max(allowed, key=lambda answer: (agrees(outcome, answer), common_prefix(answer.ids, outcome.token_ids)))


def agrees(outcome: Outcome, answer: Answer) -> bool:
    """Return whether an answer equals the cold one; after a client disconnect, whether it is a prefix of it."""
    cold = answer.ids if outcome.aborted is None else answer.ids[: len(outcome.tokens)]
    return cold == outcome.token_ids


def wrong_answer(history: History, outcome: Outcome, expected: Answer, answers: Answers, rule: Rule) -> Finding:
    """Return the finding about a wrong answer, with the strongest explanation that the facts support."""
    position = common_prefix(expected.ids, outcome.token_ids)
    failure_class, explanation = explain(history, outcome, answers)
    cached = "an unknown number" if outcome.cached_tokens is None else str(outcome.cached_tokens)
    return Finding(
        checker="tokens",
        failure_class=failure_class,
        request=outcome.request,
        position=position,
        noise=not counts(expected, outcome.token_ids, rule),
        sentence=(
            f"Request {outcome.request} to '{outcome.model}' differs from the cold answer at token {position} "
            f"({cached} of its {len(outcome.prompt)} prompt tokens came from the cache){explanation}"
        ),
    )


def changed_by_design(outcome: Outcome, expected: Answer) -> Finding:
    """Return the finding about a difference that a lossy mode may cause."""
    position = common_prefix(expected.ids, outcome.token_ids)
    return Finding(
        checker="tokens",
        failure_class=FailureClass.CORRUPT,
        request=outcome.request,
        position=position,
        permitted=True,
        sentence=f"Request {outcome.request} to '{outcome.model}' differs from the cold answer at token {position}, as "
        "this lossy mode allows.",
    )


def matches_another(history: History, outcome: Outcome, expected: Answer, answers: Answers) -> Finding | None:
    """Return a finding if the answer is another identity's, or that of a request with which the prompt shares no piece.

    No lossy mode explains such an answer. The answers must have enough tokens that differ from the cold answer. Return
    None if there is no such match.
    """
    position = common_prefix(expected.ids, outcome.token_ids)
    mine = {identity.adapter for identity in outcome.identities}
    if len(outcome.tokens) - position < PROOF:
        return None
    said = f"Request {outcome.request} to '{outcome.model}' differs from the cold answer at token {position}"
    for adapter, answer in known_answers(outcome, answers):
        if adapter not in mine and answer.ids == outcome.token_ids:
            whose = "the base model" if adapter is None else history.describe_adapter(adapter)
            return Finding(
                checker="tokens",
                failure_class=FailureClass.STALE_STATE,
                request=outcome.request,
                position=position,
                sentence=f"{said}: it equals the answer of {whose}, which no lossy mode explains.",
            )
    for other in history.outcomes:
        apart = not (
            may_reuse_non_prefix(history.shape, other, outcome) or may_reuse_non_prefix(history.shape, outcome, other)
        )
        if other.prompt != outcome.prompt and other.token_ids == outcome.token_ids and apart:
            return Finding(
                checker="tokens",
                failure_class=FailureClass.CROSS_REQUEST,
                request=outcome.request,
                position=position,
                sentence=f"{said}: it equals the answer to request {other.request}, although the two prompts share no "
                "reusable piece.",
            )
    return None


def counts(expected: Answer, ids: tuple[int, ...], rule: Rule) -> bool:
    """Return whether an answer differs from the cold one by more than the noise that the rule allows."""
    position = common_prefix(expected.ids, ids)
    gap = expected.tokens[position].gap if position < len(expected.tokens) else None
    return ids != expected.ids and rule.counts(gap)


def explain(history: History, outcome: Outcome, answers: Answers) -> tuple[FailureClass, str]:
    """Return the failure class and the rest of the sentence: a positive match if there is one, else 'corrupt'."""
    for identity, answer in known_answers(outcome, answers):
        if identity not in {i.adapter for i in outcome.identities} and answer.ids == outcome.token_ids:
            what = "the base model" if identity is None else history.describe_adapter(identity)
            return FailureClass.STALE_STATE, f": it equals the answer of {what}."
    if outcome.overlapped:
        expected = closest(outcome, answers)
        shared = common_prefix(expected.ids, outcome.token_ids)
        return (
            FailureClass.CORRUPT,
            f": {shared} tokens match one adapter version, the rest matches neither the old nor the new version.",
        )
    other = request_with_same_answer(history, outcome)
    if other is not None:
        return FailureClass.CROSS_REQUEST, f": it equals the answer to request {other}, which has a different prompt."
    source = foreign_source(history, outcome)
    if source is None:
        return explain_length(outcome, closest(outcome, answers))
    if source.overlapped:
        return (
            FailureClass.STALE_STATE,
            f": its cached prefix was written by request {source.request}, during which the adapter was changed.",
        )
    cached = "the only cached prefix of its prompt" if outcome.cached_tokens is None else "its cached prefix"
    return (
        FailureClass.STALE_STATE,
        f": {cached} was written by request {source.request} for {history.describe_identity(source.identities[0])}, "
        f"while this request is for {history.describe_identity(outcome.identities[-1])}.",
    )


def explain_length(outcome: Outcome, expected: Answer) -> tuple[FailureClass, str]:
    """Return the failure class and the rest of the sentence for an answer without any match.

    An answer of the wrong length may still consist of the cold answer's tokens. More tokens than requested are an API
    failure, because the content of the cache cannot cause them.
    """
    mine, cold = outcome.token_ids, expected.ids
    if len(mine) < len(cold) and cold[: len(mine)] == mine:
        return (
            FailureClass.CORRUPT,
            f": it ends after the first {len(mine)} of the cold answer's {len(cold)} tokens.",
        )
    if len(mine) > outcome.max_tokens and mine[: len(cold)] == cold:
        return (
            FailureClass.API,
            f": it is the whole cold answer followed by {len(mine) - len(cold)} more tokens than requested.",
        )
    return FailureClass.CORRUPT, "; it equals no known cold answer."


def known_answers(outcome: Outcome, answers: Answers) -> Iterator[tuple[str | None, Answer]]:
    """Yield (adapter content, cold answer) for every content whose answer to this prompt is known."""
    for asked, answer in answers.items():
        if asked.prompt == outcome.prompt and asked.max_tokens == outcome.max_tokens:
            yield asked.adapter, answer


def request_with_same_answer(history: History, outcome: Outcome) -> int | None:
    """Return a request with a different prompt and the same answer, if it is long enough to rule out chance."""
    for other in history.outcomes:
        if other.prompt != outcome.prompt and other.token_ids == outcome.token_ids and len(outcome.tokens) >= PROOF:
            return other.request
    return None


def foreign_source(history: History, outcome: Outcome) -> Outcome | None:
    """Return the request that wrote the prefix that was hit, if only another identity or an overlapped request did.

    If the number of hit tokens is unknown, a prefix of at least one block counts. Return None if a request of the same
    identity wrote such a prefix as well.
    """
    hit = outcome.cached_tokens
    if hit is None:
        hit = max(outcome.hit_at_least, history.shape.block_size or ASSUMED_BLOCK)
    if not hit:
        return None
    candidates = [
        other
        for other in history.outcomes
        if other.sent < outcome.sent
        and reusable_tokens(history.shape, written_tokens(other), outcome.prompt) >= hit
        and (other.overlapped or not set(other.identities) & set(outcome.identities))
    ]
    honest = any(
        other.sent < outcome.sent
        and other.identities == outcome.identities
        and reusable_tokens(history.shape, written_tokens(other), outcome.prompt) >= hit
        for other in history.outcomes
    )
    return None if honest or not candidates else candidates[-1]


def differs(outcome: Outcome, identity: Identity, answers: Answers) -> bool | None:
    """Return whether another identity's cold answer differs here; None if the oracle was not asked."""
    other = answers.get(distinguishing_question(outcome, identity))
    mine = answers.get(question(outcome, outcome.identities[-1]))
    return None if other is None or mine is None else other.ids != mine.ids[: len(other.ids)]
