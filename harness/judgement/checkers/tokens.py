"""Checks that every answer equals, token by token, a cold answer under an identity that the request may have had."""

from __future__ import annotations

import msgspec

from coldproof.harness.history.non_prefix_reuse import may_be_changed, may_reuse_non_prefix, reusable_tokens
from coldproof.harness.history.records import History, Identity, Outcome, assumed_block, common_prefix, written_tokens
from coldproof.harness.judgement.checkers.noise_tolerance import (
    MATCHED,
    beyond_chance,
    describe_deviation,
    excess,
    measure_deviation,
    places,
    too_short_or_long,
)
from coldproof.harness.judgement.checkers.sampled_answers import with_rounding
from coldproof.harness.judgement.checks import check
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import (
    Answer,
    Answers,
    Question,
    comparable_outcomes,
    distinguishing_question,
    question,
    scoring_question,
)
from coldproof.harness.schema.verdict import FailureClass

# Scores are reported with about seven digits. Whether rounding chose between two tokens that are closer is unknown if
# the calibration measured no rounding.
RESOLUTION_NATS = 1e-5
PROOF = 4  # tokens of two equal answers that rule out chance


@check(
    "tokens",
    order=30,
    fails=(
        "A token that differs from every cold answer that the request may have, under each identity that it may have."
    ),
    of_answers=True,
    without_cache=True,
)
def check_tokens(history: History, answers: Answers, rule: Rule) -> list[Finding]:
    """Return a finding for each request whose answer, as far as its client read it, equals none of its cold answers.

    An answer that a lossy mode may have changed is only compared with the answers of others: see `Rule`.
    """
    found = []
    changed = may_be_changed(history) if rule.lossy else frozenset()
    for outcome in comparable_outcomes(history):
        if outcome.options.pooled is not None:
            continue  # check_pooled
        expected = closest(outcome, answers)
        if outcome.request in changed:
            if not agrees(outcome, expected):
                found.append(difference_in_lossy_mode(history, outcome, expected, answers))
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
        words = f"got the cold answer's tokens, but {describe_deviation(one, band)}."
        return [finding(outcome, FailureClass.CORRUPT, 0, words)]
    made = wrong_answer(history, outcome, expected, answers, rule)
    matched = made.failure_class in MATCHED
    counted = outside or too_short_or_long(outcome, expected.ids) or (matched and beyond_chance(one, band))
    if not counted and not is_scored(outcome, made.position, expected, answers, longest=history.shape.max_model_tokens):
        said = f"Request {outcome.request} diverges from the cold answer at token {made.position}, for which the "
        said += "scores of both sides are not known: no noise explains it, and none is excluded."
        return [msgspec.structs.replace(made, noise=True, sentence=said)]
    if not counted:
        said = f"Request {outcome.request} diverges from the cold answer at token {made.position}; the scores of both "
        said += "sides are within the noise tolerance."
        return [msgspec.structs.replace(made, noise=True, explained=True, sentence=said)]
    by_scores = f" By scores, {describe_deviation(one, band)}." if outside else ""
    return [msgspec.structs.replace(made, noise=False, sentence=made.sentence + by_scores)]


def finding(outcome: Outcome, failure_class: FailureClass, position: int, words: str) -> Finding:
    """Return the finding about an answer; `words` is the rest of its sentence."""
    sentence = f"Request {outcome.request} to '{outcome.model}' {words}"
    return Finding(
        checker="tokens", failure_class=failure_class, request=outcome.request, position=position, sentence=sentence
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
    """Return the finding about a wrong answer, with the strongest explanation that the facts support.

    Under an exact rule, two facts explain a divergence, and both are measured: the cold engine gave the same tokens
    when it was asked again, or the two tokens are so close that the rounding which the calibration measured may choose
    between them. A small margin alone explains nothing, because every engine can report one. How often a measured cause
    may explain a divergence is limited by `coldproof.harness.schema.divergences`.
    """
    position = common_prefix(expected.ids, outcome.token_ids)
    failure_class, explanation = explain(history, outcome, answers)
    cached = "an unknown number" if outcome.cached_tokens is None else str(outcome.cached_tokens)
    words = f"({cached} of its {len(outcome.prompt)} prompt tokens came from the cache){explanation}"
    made = finding(outcome, failure_class, position, f"differs from the cold answer at token {position} {words}")
    longest = history.shape.max_model_tokens
    apart = preference(outcome, expected, answers, longest=longest)
    if rule.exact and failure_class is FailureClass.CORRUPT:
        said = f"Request {outcome.request} diverges from the cold answer at token {position}, where "
        if is_repeated_cold(outcome, answers):
            said += "the cold engine itself gave these tokens when it was asked again."
            return msgspec.structs.replace(made, noise=True, explained=True, sentence=said)
        if outcome.options.answers > 1:
            return with_rounding(made, outcome, expected, 0, answers, rule, longest=longest)
        if apart is not None and rule.rounding is not None and apart <= max(rule.rounding, RESOLUTION_NATS):
            explained = apart <= rule.rounding and rule.rounding > 0
            said += f"the two tokens' scores are {apart:.1g} nats apart: "
            said += "rounding decides." if explained else "rounding may decide, but the calibration measured none."
            return msgspec.structs.replace(made, noise=True, explained=explained, sentence=said)
    return msgspec.structs.replace(made, noise=not counts(expected, outcome.token_ids, rule))


def preference(outcome: Outcome, expected: Answer, answers: Answers, *, longest: int) -> float | None:
    """Return by how many nats a cold engine prefers its token where an answer first differs; None if unknown.

    It follows from the cold engine's margin there, from its score of the other token, or from the score that the engine
    under test gave its own: up to there both have the same tokens, so that the best score must be the same. If the
    engine under test reports a margin as well, both margins count: so far did the two scores move.
    """
    position = common_prefix(expected.ids, outcome.token_ids)
    if position >= min(len(expected.tokens), len(outcome.tokens)):
        return None
    cold, warm = expected.tokens[position], outcome.tokens[position]
    if cold.gap is not None:
        return cold.gap + (warm.gap or 0.0)
    if cold.logprob is None:
        return None
    forced = [answers.get(asked) for asked in tie_questions(outcome, position, longest=longest)]
    scores = [one.prompt_logprobs[-1] for one in forced if one is not None and one.prompt_logprobs]
    known = [score for score in (*scores, warm.logprob) if score is not None]
    return abs(cold.logprob - known[0]) if known else None


def is_repeated_cold(outcome: Outcome, answers: Answers) -> bool:
    """Return whether a cold engine, asked again, gave the tokens of an answer up to the first that differs.

    A repetition that differs elsewhere explains nothing.
    """
    for identity in outcome.identities:
        cold = answers.get(question(outcome, identity))
        end = 0 if cold is None else common_prefix(cold.ids, outcome.token_ids) + 1
        if (
            cold is not None
            and end <= len(outcome.token_ids)
            and any(ids[:end] == outcome.token_ids[:end] for ids in cold.again)
        ):
            return True
    return False


def is_scored(outcome: Outcome, position: int | None, expected: Answer, answers: Answers, *, longest: int) -> bool:
    """Return whether both sides' scores, and the cold engine's margin, are known where an answer first differs."""
    asked = (scoring_question(outcome, identity, longest=longest) for identity in outcome.identities)
    forced = [answers[one] for one in asked if one is not None and one in answers]
    found = (place for one in forced for place in places(outcome.tokens, len(outcome.prompt), one, expected))
    return any(one.position == position and one.score is not None and one.margin is not None for one in found)


def tie_questions(outcome: Outcome, position: int, *, longest: int) -> list[Question]:
    """Return the questions for the cold scores of an answer's token at a position, after the tokens before it."""
    shorter = msgspec.structs.replace(outcome, tokens=outcome.tokens[: position + 1])
    asked = (scoring_question(shorter, identity, longest=longest) for identity in outcome.identities)
    return [one for one in asked if one is not None]


def difference_in_lossy_mode(history: History, outcome: Outcome, expected: Answer, answers: Answers) -> Finding:
    """Return the finding about an answer that the lossy mode may have changed: permitted if the mode can explain it.

    No lossy mode explains an answer that is another identity's, or that of a request with which the prompt shares no
    piece. The answers must have enough tokens that differ from the cold answer.
    """
    position = common_prefix(expected.ids, outcome.token_ids)
    said = f"differs from the cold answer at token {position}"
    if len(outcome.tokens) - position >= PROOF:
        whose = content_with_same_answer(history, outcome, answers)
        if whose is not None:
            words = f"{said}: it equals the answer of {whose}, which no lossy mode explains."
            return finding(outcome, FailureClass.STALE_STATE, position, words)
        for other in history.outcomes:
            pairs = ((other, outcome), (outcome, other))
            apart = not any(may_reuse_non_prefix(history.shape, one, another) for one, another in pairs)
            if other.prompt != outcome.prompt and other.token_ids == outcome.token_ids and apart:
                words = f"{said}: it equals the answer to request {other.request}, although the two prompts share no "
                return finding(outcome, FailureClass.CROSS_REQUEST, position, f"{words}reusable piece.")
    made = finding(outcome, FailureClass.CORRUPT, position, f"{said}, as this lossy mode allows.")
    return msgspec.structs.replace(made, permitted=True)


def counts(expected: Answer, ids: tuple[int, ...], rule: Rule) -> bool:
    """Return whether an answer differs from the cold one by more than the noise that the rule allows."""
    position = common_prefix(expected.ids, ids)
    gap = expected.tokens[position].gap if position < len(expected.tokens) else None
    return ids != expected.ids and rule.counts(gap)


def explain(history: History, outcome: Outcome, answers: Answers) -> tuple[FailureClass, str]:
    """Return the failure class and the rest of the sentence: a positive match if there is one, else 'corrupt'."""
    whose = content_with_same_answer(history, outcome, answers)
    if whose is not None:
        return FailureClass.STALE_STATE, f": it equals the answer of {whose}."
    if outcome.overlapped:
        said = f": {common_prefix(closest(outcome, answers).ids, outcome.token_ids)} tokens match one adapter version"
        return FailureClass.CORRUPT, f"{said}, the rest matches neither the old nor the new version."
    other = request_with_same_answer(history, outcome)
    if other is not None:
        return FailureClass.CROSS_REQUEST, f": it equals the answer to request {other}, which has a different prompt."
    source = foreign_source(history, outcome)
    if source is None:
        return explain_length(outcome, closest(outcome, answers))
    writer = f"was written by request {source.request}"
    if source.overlapped:
        changed = "the weights were" if len({i.weights for i in source.identities}) > 1 else "the adapter was"
        return FailureClass.STALE_STATE, f": its cached prefix {writer}, during which {changed} changed."
    cached = "the only cached prefix of its prompt" if outcome.cached_tokens is None else "its cached prefix"
    theirs, own = (history.describe_identity(i) for i in (source.identities[0], outcome.identities[-1]))
    return FailureClass.STALE_STATE, f": {cached} {writer} for {theirs}, while this request is for {own}."


def explain_length(outcome: Outcome, expected: Answer) -> tuple[FailureClass, str]:
    """Return the failure class and the rest of the sentence for an answer without any match.

    An answer of the wrong length may still consist of the cold answer's tokens. More tokens than requested are an API
    failure, because the content of the cache cannot cause them.
    """
    mine, cold = outcome.token_ids, expected.ids
    if len(mine) < len(cold) and cold[: len(mine)] == mine:
        return FailureClass.CORRUPT, f": it ends after the first {len(mine)} of the cold answer's {len(cold)} tokens."
    if len(mine) > outcome.max_tokens and mine[: len(cold)] == cold:
        more = f"{len(mine) - len(cold)} more tokens than requested"
        return FailureClass.API, f": it is the whole cold answer followed by {more}."
    return FailureClass.CORRUPT, "; it equals no known cold answer."


def content_with_same_answer(history: History, outcome: Outcome, answers: Answers) -> str | None:
    """Return the description of another content, or of the base model, whose cold answer to this prompt is the same."""
    mine = {(identity.adapter, identity.weights) for identity in outcome.identities}
    for asked, answer in answers.items():
        same_question = asked.prompt == outcome.prompt and asked.max_tokens == outcome.max_tokens
        other = (asked.adapter, asked.weights) not in mine
        if same_question and other and answer.ids == outcome.token_ids:
            whose = "the base model" if asked.adapter is None else history.describe_adapter(asked.adapter)
            return f"{whose} with {history.describe_weights(asked.weights)}" if history.updates else whose
    return None


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
        hit = max(outcome.hit_at_least, assumed_block(history))
    if not hit:
        return None
    writers = [
        other
        for other in history.outcomes
        if other.sent < outcome.sent and reusable_tokens(history.shape, written_tokens(other), outcome.prompt) >= hit
    ]
    if any(other.identities == outcome.identities for other in writers):
        return None
    foreign = [o for o in writers if o.overlapped or not set(o.identities) & set(outcome.identities)]
    return foreign[-1] if foreign else None


def differs(outcome: Outcome, identity: Identity, answers: Answers) -> bool | None:
    """Return whether another identity's cold answer differs here; None if the oracle was not asked."""
    other = answers.get(distinguishing_question(outcome, identity))
    mine = answers.get(question(outcome, outcome.identities[-1]))
    if other is None or mine is None:
        return None
    return other.pooled != mine.pooled if mine.pooled is not None else other.ids != mine.ids[: len(other.ids)]
