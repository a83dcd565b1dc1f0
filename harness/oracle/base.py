"""What an oracle is asked and what it answers.

A question names content, never an adapter's name; its answer therefore holds under any name and is asked only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from adapters.base import PLAIN, Surface, Token
from harness.history import History, Identity, Outcome


class Question(msgspec.Struct, frozen=True):
    """A prompt under an adapter content (None: the base model). Salt and priority change no cold answer."""

    prompt: tuple[int, ...]
    adapter: str | None
    max_tokens: int
    surface: Surface = PLAIN


class Answer(msgspec.Struct, frozen=True):
    """The cold answer, with the top-2 logprob gap at each position where the engine gives one. `text`: None where no
    engine was asked."""

    tokens: tuple[Token, ...]
    others: tuple[tuple[Token, ...], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    finish_reason: str | None = None
    text: str | None = None
    prompt_best: tuple[float | None, ...] | None = None  # the best token's score in each place, where that is told

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids alone."""
        return tuple(token.id for token in self.tokens)


Answers = dict[Question, Answer]


class OracleError(Exception):
    """The oracle cannot answer: the harness, not the engine under test, has failed."""


class Oracle(Protocol):
    """Gives cold-start answers."""

    name: str

    def ask(self, question: Question) -> Answer:
        """The cold answer. Raises OracleError."""


def question(outcome: Outcome, identity: Identity) -> Question:
    """What the oracle has to be asked about a request under one identity."""
    return Question(outcome.prompt, identity.adapter, outcome.max_tokens, outcome.surface)


SCORED = Surface(prompt_logprobs=True)


def forced(outcome: Outcome, identity: Identity, *, longest: int) -> Question | None:
    """What has a cold start score every token of an answer: one prefill of the prompt and the answer behind it. None
    where scores of it would not be comparable: several sampled answers, or one that a grammar chose among.

    A model that has no room for one token more scores all but the answer's last.
    """
    plain = outcome.surface.answers == 1 and outcome.surface.pattern is None
    tokens = (*outcome.prompt, *outcome.token_ids)[: longest - 1]
    if not plain or len(tokens) <= len(outcome.prompt):
        return None
    return Question(tokens, identity.adapter, 1, SCORED)


TELLING_TOKENS = 4  # enough to tell two random adapters apart, and cheap: it is asked for every risky request


def telling(outcome: Outcome, identity: Identity) -> Question:
    """A short question that shows whether another identity would answer otherwise here."""
    return Question(outcome.prompt, identity.adapter, min(outcome.max_tokens, TELLING_TOKENS))


def judged(history: History) -> list[Outcome]:
    """The requests with tokens to compare. One that the engine may refuse, or cut at its limit, has no cold answer; one
    that goes on beyond it has, for a cold engine of its kind goes on likewise.
    """
    longest = math.inf if history.shape.shifts_context else history.shape.max_model_tokens
    return [
        o
        for o in history.outcomes
        if o.error is None and (o.tokens or o.aborted is None) and len(o.prompt) + o.max_tokens <= longest
    ]


def questions(history: History) -> Iterable[Question]:
    """All that a judgement of this history needs to know."""
    for outcome in judged(history):
        for identity in outcome.identities:
            yield question(outcome, identity)


def scores_wanted(history: History) -> Iterable[Question]:
    """What a judgement by scores needs to know beside: the cold side's scores of each answer's tokens."""
    longest = history.shape.max_model_tokens
    for outcome in judged(history):
        for identity in outcome.identities:
            asked = forced(outcome, identity, longest=longest)
            if asked is not None:
                yield asked
