"""Cold answers of the fingerprint worker, computed without any engine: a fold over the prompt's tokens.

The worker's arithmetic (`adapters.fingerprint.digest`) is the only thing shared with it; what it reads from a pool, and
how it is told what to read, is not. Grammars are not arithmetic: structured output is asked of a cold engine.
"""

from __future__ import annotations

import functools
import itertools
import random

from adapters.base import PLAIN, Surface, Token
from adapters.completions import SEED
from adapters.fingerprint.digest import (
    FIRST_TOKEN,
    TOKENS,
    chain,
    draw,
    link,
    logprob,
    prompt_logprob,
    ranked,
    seed_of,
)
from harness.oracle.base import Answer, Oracle, OracleError, Question

RUNNER_UP = 1
VERIFIED_TOKENS = 12


class ClosedForm:
    """The answers by arithmetic; `cold` is asked for what has none."""

    name = "closed-form"

    def __init__(self, cold: Oracle) -> None:
        self.cold = cold

    def ask(self, question: Question) -> Answer:
        """The cold answer. Raises OracleError where a cold engine is needed and cannot answer."""
        if question.surface.pattern is not None or question.surface.stop:
            return self.cold.ask(question)
        return computed(question)

    def verify(self, adapters: list[str]) -> None:
        """Compare with the cold engine. Raises OracleError where they differ: then the worker is not what is computed
        here, and nothing can be said about the engine.
        """
        surfaces = (PLAIN, Surface(answers=2), Surface(prompt_logprobs=True))
        for length, (adapter, surface) in enumerate(itertools.product([None, *adapters[:2]], surfaces), start=60):
            tokens = tuple(random.Random(length).choices(range(FIRST_TOKEN, FIRST_TOKEN + TOKENS), k=length))
            asked = Question(tokens, adapter, VERIFIED_TOKENS, surface)
            said, here = self.cold.ask(asked), self.ask(asked)
            if (ids(said), said.prompt_logprobs) != (ids(here), here.prompt_logprobs):
                raise OracleError(f"the closed form and a cold engine disagree about {asked}: {said} and {here}")


@functools.lru_cache(maxsize=4096)
def computed(question: Question) -> Answer:
    """The answer by arithmetic: the same question is asked again by each judge of a history."""
    surface = question.surface
    seed = seed_of(question.adapter)
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


def ids(given: Answer) -> tuple[tuple[int, ...], ...]:
    """The tokens of all its answers."""
    return tuple(tuple(token.id for token in tokens) for tokens in (given.tokens, *given.others))


def answer(question: Question, seed: int, state: int, drawn_by: int | None) -> tuple[Token, ...]:
    """One answer's tokens behind a prompt's state, each with its score and the runner-up's distance."""
    tokens: list[Token] = []
    for position in range(len(question.prompt), len(question.prompt) + question.max_tokens):
        number = draw(state, seed=drawn_by, position=position)
        best, second = float(logprob(number, 0)), float(logprob(number, RUNNER_UP))
        tokens.append(Token(id=ranked(number, 0), at=0.0, logprob=best, gap=best - second))
        state = link(tokens[-1].id, position=position, before=state, seed=seed)
    return tuple(tokens)


def scores(question: Question, states: list[int]) -> tuple[float | None, ...]:
    """The scores of a prompt's tokens: none for the first."""
    behind = zip(states, question.prompt[1:], strict=False)
    return (None, *(float(prompt_logprob(before, token)) for before, token in behind))
