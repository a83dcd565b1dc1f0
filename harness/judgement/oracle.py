"""Questions to an oracle and its answers.

A question names an adapter's content, never its name. So its answer holds under every name, and is asked only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from coldproof.adapters.protocol.pooling import Rows
from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions, Token, ids_of
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.harness.history.records import History, Identity, Outcome
from coldproof.harness.history.weights import is_comparable

SCORED = ResponseOptions(prompt_logprobs=True)
DISCRIMINATING_TOKENS = (
    4  # enough to distinguish two random adapters, and cheap: asked whenever a stale hit is possible
)


class Question(msgspec.Struct, frozen=True):
    """A prompt under an adapter content (None: the base model) and a version of the weights (None: that of the start).

    Salt and priority change no cold answer.
    """

    prompt: tuple[int, ...]
    adapter: str | None
    max_tokens: int
    options: ResponseOptions = PLAIN
    weights: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """A cold answer, with the top-2 logprob margin of each token if the engine reports it. `text` is None if the
    answer was computed without an engine. `again`: other tokens that the cold engine gave the same question, when it
    was sent again after a warm answer had differed."""

    tokens: tuple[Token, ...]
    others: tuple[tuple[Token, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    finish_reason: str | None = None
    text: str | None = None
    prompt_best: tuple[float | None, ...] | None = None  # logprob of the best token at each position, if reported
    pooled: Rows | None = None  # the vectors of a pooled answer
    again: tuple[tuple[int, ...], ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """Return the token ids."""
        return ids_of(self.tokens)


Answers = dict[Question, Answer]


class OracleError(Exception):
    """The oracle cannot answer: the harness, not the engine under test, has failed."""


class Oracle(Protocol):
    """Gives cold-start answers."""

    name: str
    scores_prompts: bool = False  # whether it scores the tokens of a prompt where its own margins are unknown
    takes_more: bool = True  # whether another question costs no more than an answer

    def ask(self, question: Question) -> Answer:
        """Return the cold answer, to a question that was asked alone. Raises OracleError."""

    def ask_all(self, questions: Iterable[Question]) -> Answers:
        """Return the cold answers, which may come from batches if that is faster. Raises OracleError."""
        return {one: self.ask(one) for one in questions}

    def ask_again(self, _question: Question) -> tuple[tuple[int, ...], ...]:
        """Send a question again, alone and in a batch, and return the other answers to it: none if it is computed.

        Raises OracleError.
        """
        return ()


def question(outcome: Outcome, identity: Identity) -> Question:
    """Return the question for a request's cold answer under one identity."""
    return Question(
        outcome.prompt, identity.adapter, outcome.max_tokens, outcome.options.of_the_answer, identity.weights
    )


def continuation(outcome: Outcome, identity: Identity, after: int) -> Question:
    """Return the question for the rest of an answer after some of its tokens, under one identity."""
    tokens = (*outcome.prompt, *outcome.token_ids[:after])
    return Question(tokens, identity.adapter, max(1, outcome.max_tokens - after), PLAIN, identity.weights)


def scoring_question(outcome: Outcome, identity: Identity, *, longest: int) -> Question | None:
    """Return the question that lets a cold engine score every token of an answer: one prefill of prompt and answer.

    Return None if the scores are not comparable: for several sampled answers, structured output, or a prompt with
    embedding rows, of which engines score no tokens. The tokens are cut to `longest - 1`, because the engine must have
    room to generate one.
    """
    plain = outcome.options.answers == 1 and outcome.options.pattern is None and not outcome.hidden
    tokens = (*outcome.prompt, *outcome.token_ids)[: longest - 1]
    if not plain or len(tokens) <= len(outcome.prompt):
        return None
    return Question(tokens, identity.adapter, 1, SCORED, identity.weights)


def distinguishing_question(outcome: Outcome, identity: Identity) -> Question:
    """Return a short question that shows whether another identity has a different answer to this prompt."""
    if outcome.options.pooled is not None:
        return question(outcome, identity)
    tokens = min(outcome.max_tokens, DISCRIMINATING_TOKENS)
    return Question(outcome.prompt, identity.adapter, tokens, PLAIN, identity.weights)


def comparable_outcomes(history: History) -> list[Outcome]:
    """Return the requests whose tokens can be compared with a cold answer.

    A request to an engine about which something was different has none: no oracle has that difference.
    A request that exceeds the context length has none, because the engine may refuse it or truncate the answer. An
    engine that shifts its context answers it, and so does a cold engine of that kind. After an update of the weights,
    only what the engine promises is compared.
    """
    longest = math.inf if history.shape.shifts_context else history.shape.max_model_tokens
    return [
        o
        for o in history.outcomes
        if o.error is None
        and (o.tokens or o.aborted is None)
        and len(o.prompt) + o.max_tokens <= longest
        and is_comparable(history, o)
        and all(identity.engine is EngineChange.NOTHING for identity in o.identities)
    ]


def questions(history: History) -> Iterable[Question]:
    """Yield the question for each allowed cold answer of each request."""
    for outcome in comparable_outcomes(history):
        for identity in outcome.identities:
            yield question(outcome, identity)


def scoring_questions(history: History) -> Iterable[Question]:
    """Yield the questions that a judgement by scores needs in addition: the cold scores of each answer's tokens."""
    longest = history.shape.max_model_tokens
    for outcome in comparable_outcomes(history):
        for identity in outcome.identities:
            asked = scoring_question(outcome, identity, longest=longest)
            if asked is not None:
                yield asked
