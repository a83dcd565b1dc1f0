"""Whether the cold answers of an example could have shown a wrong block.

An answer that does not depend on the tokens before it is the same whatever KV the request read. So each example asks
one more question: the prompt of one of its requests, with other tokens in place of those that came from the cache. If
the answer stays the same, the example is no evidence about the content of the cache. Pure.
"""

from __future__ import annotations

import math

import msgspec

from coldproof.adapters.protocol.embedding_rows import FIRST_ROW
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.noise_tolerance import deviation, excess, places
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import SCORED, Answer, Answers, Question, comparable_outcomes, question
from coldproof.harness.judgement.vectors import same_vectors
from coldproof.harness.workload.steps import Segment
from coldproof.harness.workload.tokens import FIRST_TOKEN, LAST_TOKEN, segment_tokens

# Scores of an exact engine repeat within this: a larger difference is one of content.
SCORE_NATS = 1e-3


class Pair(msgspec.Struct, frozen=True):
    """A question, and the same one about a prompt with other tokens."""

    asked: Question
    changed: Question


def pair_of(history: History) -> Pair | None:
    """Return a question of the example and its changed form; None if it has no request that can be changed.

    The request with the longest hit is changed, in all tokens that came from the cache. Without a hit, it is the one
    with the longest prompt, in its first half. Embedding rows and images stay.
    """
    usable = [
        outcome
        for outcome in comparable_outcomes(history)
        if outcome.options.answers == 1 and not outcome.overlapped and outcome.error is None
    ]
    if not usable:
        return None
    chosen = max(usable, key=lambda one: (one.hit_at_least, len(one.prompt), -one.request))
    prompt = with_other_tokens(chosen, history.nonce)
    if prompt == chosen.prompt:
        return None
    asked = question(chosen, chosen.identities[-1])
    return Pair(asked, msgspec.structs.replace(asked, prompt=prompt))


def with_other_tokens(outcome: Outcome, nonce: str) -> tuple[int, ...]:
    """Return a request's prompt with other tokens where it hit the cache, or else in its first half."""
    end = min(outcome.hit_at_least or len(outcome.prompt) // 2, len(outcome.prompt))
    return with_other_prefix(outcome.prompt, end, f"another prefix {nonce}")


def with_other_prefix(prompt: tuple[int, ...], end: int, name: str) -> tuple[int, ...]:
    """Return a prompt with other tokens at each of its first `end` positions. Embedding rows and images stay."""
    drawn = segment_tokens(name, Segment("other", end))
    begun = (seen if seen >= FIRST_ROW else other_token(seen, drawn[i]) for i, seen in enumerate(prompt[:end]))
    return (*begun, *prompt[end:])


def other_token(token: int, wanted: int) -> int:
    """Return `wanted`, or a neighbour of it if it is the token itself."""
    return wanted if wanted != token else FIRST_TOKEN + (wanted - FIRST_TOKEN + 1) % (LAST_TOKEN - FIRST_TOKEN + 1)


def changed_question(pair: Pair, answer: Answer, rule: Rule, *, longest: int) -> Question | None:
    """Return what to ask a cold engine about the changed prompt; None if nothing can be asked.

    By scores, it is the score of the known answer's tokens after the changed prompt, as a warm answer is judged.
    """
    if rule.band is None or pair.asked.options.pooled is not None:
        return pair.changed
    tokens = (*pair.changed.prompt, *answer.ids)[: longest - 1]
    plain = pair.asked.options.pattern is None and len(tokens) > len(pair.changed.prompt)
    return msgspec.structs.replace(pair.changed, prompt=tokens, max_tokens=1, options=SCORED) if plain else None


def depends(answer: Answer, other: Answer, rule: Rule, *, length: int) -> bool:
    """Return whether a cold answer and the one to a changed prompt differ by more than noise.

    `length`: tokens of the prompt. By scores, `other` has those of the first answer's tokens after the changed prompt.
    Under any other rule, a token that differs keeps a requirement from conforming, so that it counts.
    """
    if answer.pooled is not None:
        return not same_vectors(answer.pooled, other.pooled or (), rule)
    if rule.band is not None:
        moved = deviation(places(answer.tokens, length, other))
        return moved is not None and excess(moved, rule.band) > 1
    if answer.ids != other.ids:
        return True
    pairs = ((a.logprob, b.logprob) for a, b in zip(answer.tokens, other.tokens, strict=True))
    moved_by = (abs(a - b) for a, b in pairs if a is not None and b is not None)
    allowed = SCORE_NATS if rule.exact else rule.noise
    return allowed is not None and any(math.isfinite(nats) and nats > allowed for nats in moved_by)


def sensitivity_questions(history: History, answers: Answers, rule: Rule) -> list[Question]:
    """Return the question that shows whether the example's answers depend on the cached tokens."""
    asked = asked_about(pair_of(history), history, answers, rule)
    return [] if asked is None else [asked]


def asked_about(pair: Pair | None, history: History, answers: Answers, rule: Rule) -> Question | None:
    """Return what to ask about a pair of prompts; None if nothing can be asked."""
    if pair is None or pair.asked not in answers:
        return None
    return changed_question(pair, answers[pair.asked], rule, longest=history.shape.max_model_tokens)
