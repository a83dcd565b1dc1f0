"""Decides whether rounding explains that a sampled answer differs from the cold one with the same seed.

A sampled answer compares the scores of all tokens of the vocabulary with random numbers, so that one score that moves
to the next step may choose another token, however far apart the two best tokens are. It is explained if the engine
under test and a cold engine score the token that was sampled alike, after the same tokens before it: a wrong block
changes that score by tenths of a nat and more.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.adapters.protocol.requests import Token, ids_of
from coldproof.harness.history.records import Outcome, common_prefix
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.oracle import SCORED, Answer, Answers, Question


class Sampled(msgspec.Struct, frozen=True):
    """A sampled answer that differs: its number among those of its request, and the first position that differs."""

    answer: int
    position: int
    token: Token


def differing_answers(outcome: Outcome, expected: Answer) -> Iterator[Sampled]:
    """Yield the sampled answers in which a token differs from the cold one's at the same position."""
    pairs = zip((outcome.tokens, *outcome.others), (expected.tokens, *expected.others), strict=False)
    for number, (warm, cold) in enumerate(pairs):
        position = common_prefix(ids_of(warm), ids_of(cold))
        if position < min(len(warm), len(cold)):
            yield Sampled(number, position, warm[position])


def sampled_question(outcome: Outcome, one: Sampled, *, longest: int) -> Question | None:
    """Return the question for the cold score of the token that was sampled; None if the context has no room for it."""
    answer = (outcome.tokens, *outcome.others)[one.answer]
    tokens = (*outcome.prompt, *ids_of(answer[: one.position + 1]))
    identity = outcome.identities[-1]
    return Question(tokens, identity.adapter, 1, SCORED, identity.weights) if len(tokens) < longest else None


def moved(outcome: Outcome, one: Sampled, answers: Answers, *, longest: int) -> float | None:
    """Return by how many nats the two engines' scores of the sampled token differ; None if one is unknown."""
    asked = sampled_question(outcome, one, longest=longest)
    cold = None if asked is None else answers.get(asked)
    if one.token.logprob is None or cold is None or not cold.prompt_logprobs or cold.prompt_logprobs[-1] is None:
        return None
    return abs(one.token.logprob - cold.prompt_logprobs[-1])


def with_rounding(
    made: Finding, outcome: Outcome, expected: Answer, number: int, answers: Answers, rule: Rule, *, longest: int
) -> Finding:
    """Return the finding about a sampled answer, as noise if the rounding that the calibration saw may be the cause.

    Where scores have no steps, an equal seed gives equal tokens, and nothing is explained; nor is it once more answers
    diverged than rounding explains, or if the answer has another length.
    """
    if not (rule.exact and rule.cold.step and rule.rounding):
        return made
    one = next((one for one in differing_answers(outcome, expected) if one.answer == number), None)
    if one is None:
        return made
    nats = moved(outcome, one, answers, longest=longest)
    if nats is not None and nats > rule.rounding:
        return made
    which = f"Answer {number} to request {outcome.request} was sampled with the seed of the cold one, and differs from "
    which += f"it at token {one.position}: "
    said = (
        "rounding may decide, but the scores of both sides are not known."
        if nats is None
        else f"both sides score that token alike, up to {nats:.2g} nats, and scores are rounded to steps of "
        f"{rule.cold.step:.2g}, so that rounding decides."
    )
    return msgspec.structs.replace(made, noise=True, explained=nats is not None, sentence=which + said)
