"""Computes the cold answers of the fingerprint worker without an engine, as a fold over the prompt's tokens.

It shares only the arithmetic of the worker (`coldproof.adapters.vllm.fingerprint.digest`), but not how the worker reads
KV from the pool. For structured output and stop strings it asks a cold engine.
"""

from __future__ import annotations

import functools
import itertools
import random

from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions, Token
from coldproof.adapters.server.completions import SEED
from coldproof.adapters.vllm.fingerprint.digest import (
    FIRST_TOKEN,
    TOKENS,
    chain,
    chain_one,
    draw,
    logprob,
    prompt_logprob,
    seed_of,
    token_at_rank,
)
from coldproof.harness.judgement.oracle import Answer, Oracle, OracleError, Question

RUNNER_UP = 1
VERIFIED_TOKENS = 12


class ClosedForm(Oracle):
    """Computes answers; asks `cold` for those that cannot be computed."""

    name = "closed-form"

    def __init__(self, cold: Oracle) -> None:
        self.cold = cold

    def ask(self, question: Question) -> Answer:
        """Return the cold answer. Raises OracleError if a cold engine is needed and cannot answer."""
        if question.surface.pattern is not None or question.surface.stop:
            return self.cold.ask(question)
        return computed(question)

    def verify(self, adapters: list[str]) -> None:
        """Compare some answers with the cold engine. Raises OracleError if they differ, because then the computation
        does not match the worker.
        """
        surfaces = (PLAIN, ResponseOptions(answers=2), ResponseOptions(prompt_logprobs=True))
        for length, (adapter, surface) in enumerate(itertools.product([None, *adapters[:2]], surfaces), start=60):
            tokens = tuple(random.Random(length).choices(range(FIRST_TOKEN, FIRST_TOKEN + TOKENS), k=length))
            question = Question(tokens, adapter, VERIFIED_TOKENS, surface)
            measured, computed_here = self.cold.ask(question), self.ask(question)
            if (ids(measured), measured.prompt_logprobs) != (ids(computed_here), computed_here.prompt_logprobs):
                raise OracleError(
                    f"the closed form and a cold engine disagree about {question}: {measured} and {computed_here}"
                )


@functools.lru_cache(maxsize=4096)
def computed(question: Question) -> Answer:
    """Compute an answer. Answers are cached, because every judgement of a history asks the same questions."""
    surface = question.surface
    seed = seed_of(question.adapter, question.weights)
    before = chain(question.prompt, start=0, before=seed, seed=seed)
    states = [int(state) for state in before]
    sampled = [None] if surface.answers == 1 else [SEED + i for i in range(surface.answers)]
    first, *others = (answer(question, seed, states[-1], drawn_by) for drawn_by in sampled)
    return Answer(
        tokens=first,
        others=tuple(others),
        prompt_logprobs=scores(question, states) if surface.prompt_logprobs else None,
        finish_reason="length",
    )


def ids(answer: Answer) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of all answers."""
    return tuple(tuple(token.id for token in tokens) for tokens in (answer.tokens, *answer.others))


def answer(question: Question, seed: int, state: int, drawn_by: int | None) -> tuple[Token, ...]:
    """Return the tokens of one answer after a prompt's state, each with its logprob and its top-2 margin."""
    tokens: list[Token] = []
    for position in range(len(question.prompt), len(question.prompt) + question.max_tokens):
        number = draw(state, seed=drawn_by, position=position)
        best, second = float(logprob(number, 0)), float(logprob(number, RUNNER_UP))
        tokens.append(Token(id=token_at_rank(number, 0), at=0.0, logprob=best, gap=best - second))
        state = chain_one(tokens[-1].id, position=position, before=state, seed=seed)
    return tuple(tokens)


def scores(question: Question, states: list[int]) -> tuple[float | None, ...]:
    """Return the logprobs of a prompt's tokens; None for the first token."""
    behind = zip(states, question.prompt[1:], strict=False)
    return (None, *(float(prompt_logprob(before, token)) for before, token in behind))
