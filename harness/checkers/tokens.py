"""Every answer must be, token for token, a cold start's under an identity that the request may rightly have had."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from harness.checkers.finding import Finding, Rule
from harness.checkers.noisy import MATCHED, beyond_chance, excess, in_words, measured, too_short_or_long
from harness.history import History, Identity, Outcome
from harness.moved import may_be_changed, moves, reusable
from harness.oracle.base import Answer, Answers, judged, question, telling
from harness.tokens_computed import common_prefix, computed
from reports.schema import FailureClass

PROOF = 4  # tokens of a whole answer that are not there by chance
UNTOLD_BLOCK = 16  # tokens that are worth sharing, where nobody says how large a block is


def check_tokens(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Findings for each request whose answer equals none of its cold answers, as far as its client read it.

    What a lossy mode may have changed is judged by whom it equals, if anybody: see Rule.
    """
    found = []
    changed = may_be_changed(history) if rule.lossy else frozenset()
    for outcome in judged(history):
        expected = closest(outcome, answers)
        if outcome.request in changed:
            if not agrees(outcome, expected):
                match = somebody_elses(history, outcome, expected, answers)
                found.append(match or changed_by_design(outcome, expected))
            continue
        scored = by_scores(history, outcome, expected, answers, rule)
        if scored is not None:
            found += scored
        elif not agrees(outcome, expected):
            found.append(wrong(history, outcome, expected, answers, rule))
    return found


def by_scores(
    history: History, outcome: Outcome, expected: Answer, answers: Answers, rule: Rule
) -> list[Finding] | None:
    """Findings about a request by both sides' scores of its answer; None where the rule is another or none are told."""
    band = rule.band
    one = None if band is None else measured(history, outcome, answers, band)
    if band is None or one is None:
        return None
    same = agrees(outcome, expected)
    outside = excess(one, band) > 1
    if same and not outside:
        return []
    if same:
        return [scores_apart(outcome, in_words(one, band))]
    made = wrong(history, outcome, expected, answers, rule)
    matched = made.failure_class in MATCHED
    counted = outside or too_short_or_long(outcome, expected.ids) or (matched and beyond_chance(one, band))
    if not counted:
        said = f"Request {outcome.request} parts from the cold answer at token {made.position}, and both sides' scores "
        said += "lie within noise."
        return [msgspec.structs.replace(made, noise=True, explained=True, sentence=said)]
    words = f" By scores, {in_words(one, band)}." if outside else ""
    return [msgspec.structs.replace(made, noise=False, sentence=made.sentence + words)]


def scores_apart(outcome: Outcome, words: str) -> Finding:
    """The cold answer's tokens, with scores that no cold start gives them: something wrong was read all the same."""
    return Finding(
        checker="tokens",
        failure_class=FailureClass.CORRUPT,
        request=outcome.request,
        position=0,
        sentence=f"Request {outcome.request} to '{outcome.model}' gets the cold answer's tokens, but {words}.",
    )


def closest(outcome: Outcome, answers: Answers) -> Answer:
    """The allowed cold answer that agrees longest with what was observed."""
    allowed = [answers[question(outcome, identity)] for identity in outcome.identities]
    return max(allowed, key=lambda answer: (agrees(outcome, answer), common_prefix(answer.ids, outcome.token_ids)))


def agrees(outcome: Outcome, answer: Answer) -> bool:
    """Whether an answer is the cold one; where the client hung up, whether it began so."""
    cold = answer.ids if outcome.aborted is None else answer.ids[: len(outcome.tokens)]
    return cold == outcome.token_ids


def wrong(history: History, outcome: Outcome, expected: Answer, answers: Answers, rule: Rule) -> Finding:
    """Describe one wrong answer, with the strongest explanation that the facts support."""
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
    """A difference that a lossy mode may make."""
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


def somebody_elses(history: History, outcome: Outcome, expected: Answer, answers: Answers) -> Finding | None:
    """The answer that another identity would have had, or that another request did have of whose prompt this one's has
    no piece: with tokens enough in it that are not the cold answer's own. No lossy mode may give it."""
    position = common_prefix(expected.ids, outcome.token_ids)
    mine = {identity.adapter for identity in outcome.identities}
    if len(outcome.tokens) - position < PROOF:
        return None
    said = f"Request {outcome.request} to '{outcome.model}' differs from the cold answer at token {position}"
    for adapter, answer in known_answers(outcome, answers):
        if adapter not in mine and answer.ids == outcome.token_ids:
            whose = "the base model" if adapter is None else f"adapter content {adapter}"
            return Finding(
                checker="tokens",
                failure_class=FailureClass.STALE_STATE,
                request=outcome.request,
                position=position,
                sentence=f"{said}: it answers exactly as {whose} does, which no lossy mode explains.",
            )
    for other in history.outcomes:
        apart = not (moves(history.shape, other, outcome) or moves(history.shape, outcome, other))
        if other.prompt != outcome.prompt and other.token_ids == outcome.token_ids and apart:
            return Finding(
                checker="tokens",
                failure_class=FailureClass.CROSS_REQUEST,
                request=outcome.request,
                position=position,
                sentence=f"{said}: it equals the answer to request {other.request}, of whose prompt it has no piece.",
            )
    return None


def counts(expected: Answer, ids: tuple[int, ...], rule: Rule) -> bool:
    """Whether an answer differs from the cold one by more than the rule takes for noise."""
    position = common_prefix(expected.ids, ids)
    gap = expected.tokens[position].gap if position < len(expected.tokens) else None
    return ids != expected.ids and rule.counts(gap)


def explain(history: History, outcome: Outcome, answers: Answers) -> tuple[FailureClass, str]:
    """The failure class and the rest of the sentence. Positive matches first; 'corrupt' when nothing matches."""
    for identity, answer in known_answers(outcome, answers):
        if identity not in {i.adapter for i in outcome.identities} and answer.ids == outcome.token_ids:
            what = "the base model" if identity is None else f"adapter content {identity}"
            return FailureClass.STALE_STATE, f": it answers exactly as {what} does."
    if outcome.overlapped:
        expected = closest(outcome, answers)
        shared = common_prefix(expected.ids, outcome.token_ids)
        return FailureClass.CORRUPT, f": {shared} tokens of one version, then neither the old one's nor the new one's."
    other = same_answer_elsewhere(history, outcome)
    if other is not None:
        return FailureClass.CROSS_REQUEST, f": it equals the answer to request {other}, which asked something else."
    source = foreign_source(history, outcome)
    if source is None:
        return length_alone(outcome, closest(outcome, answers))
    if source.overlapped:
        return (
            FailureClass.STALE_STATE,
            f": its cached prefix was written by request {source.request}, under which the adapter was changed.",
        )
    cached = "all that lay cached of its prompt" if outcome.cached_tokens is None else "its cached prefix"
    return (
        FailureClass.STALE_STATE,
        f": {cached} was written by request {source.request} for {source.identities[0]}, "
        f"while this request is for {outcome.identities[-1]}.",
    )


def length_alone(outcome: Outcome, expected: Answer) -> tuple[FailureClass, str]:
    """Class and rest of the sentence where no cold answer matches: one of the wrong length may still be made of the
    cold answer's tokens. More tokens than were asked for are no matter of what the cache holds.
    """
    mine, cold = outcome.token_ids, expected.ids
    if len(mine) < len(cold) and cold[: len(mine)] == mine:
        return (
            FailureClass.CORRUPT,
            f": it is the beginning of the cold answer, {len(mine)} of its {len(cold)} tokens, and then ends.",
        )
    if len(mine) > outcome.max_tokens and mine[: len(cold)] == cold:
        return (
            FailureClass.API,
            f": it is the whole cold answer, and {len(mine) - len(cold)} tokens more than were asked for.",
        )
    return FailureClass.CORRUPT, "; it equals no known cold answer."


def known_answers(outcome: Outcome, answers: Answers) -> Iterator[tuple[str | None, Answer]]:
    """(adapter content, cold answer) for every content that was asked about this prompt."""
    for asked, answer in answers.items():
        if asked.prompt == outcome.prompt and asked.max_tokens == outcome.max_tokens:
            yield asked.adapter, answer


def same_answer_elsewhere(history: History, outcome: Outcome) -> int | None:
    """Another request with another prompt and the very same answer, long enough not to be chance."""
    for other in history.outcomes:
        if other.prompt != outcome.prompt and other.token_ids == outcome.token_ids and len(outcome.tokens) >= PROOF:
            return other.request
    return None


def foreign_source(history: History, outcome: Outcome) -> Outcome | None:
    """Who, of another identity or while an adapter changed, wrote a prefix at least as long as the one that was hit.

    Where nobody tells what was hit, one of a block at least, as long as nobody of the same identity wrote such a one.
    """
    hit = outcome.cached_tokens
    if hit is None:
        hit = max(outcome.hit_at_least, history.shape.block_size or UNTOLD_BLOCK)
    if not hit:
        return None
    candidates = [
        other
        for other in history.outcomes
        if other.sent < outcome.sent
        and reusable(history.shape, computed(other), outcome.prompt) >= hit
        and (other.overlapped or not set(other.identities) & set(outcome.identities))
    ]
    honest = any(
        other.sent < outcome.sent
        and other.identities == outcome.identities
        and reusable(history.shape, computed(other), outcome.prompt) >= hit
        for other in history.outcomes
    )
    return None if honest or not candidates else candidates[-1]


def differs(outcome: Outcome, identity: Identity, answers: Answers) -> bool | None:
    """Whether another identity's cold answer would tell itself apart here; None where it was not asked."""
    other = answers.get(telling(outcome, identity))
    mine = answers.get(question(outcome, outcome.identities[-1]))
    return None if other is None or mine is None else other.ids != mine.ids[: len(other.ids)]
