"""Computes the cold answers of the fingerprint worker without an engine, as a fold over the prompt's tokens.

It shares only the arithmetic of the worker (`coldproof.adapters.vllm.fingerprint.digest`), but not how the worker reads
KV from the pool. For structured output and stop strings it asks a cold engine.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Collection

import numpy as np

from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import has_rows, is_row, row_id
from coldproof.adapters.protocol.images import (
    has_images,
    image_and_offset,
    image_id,
    image_positions,
    is_image,
    look_of,
    pixels,
)
from coldproof.adapters.protocol.pooling import QUERY, Task
from coldproof.adapters.protocol.requests import PLAIN, ResponseOptions, Token, ids_of
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.adapters.server.completions import SEED
from coldproof.adapters.vllm.fingerprint.digest import (
    FIRST_TOKEN,
    TOKENS,
    chain,
    chain_one,
    draw,
    logprob,
    pixel_digest,
    pooled_rows,
    position_digest,
    prompt_logprob,
    row_digests,
    seed_of,
    token_at_rank,
)
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.oracle import Answer, Oracle, OracleError, Question
from coldproof.harness.judgement.vectors import cosine, same_vectors
from coldproof.harness.schema.oracles import CLOSED_FORM

RUNNER_UP = 1
VERIFIED_TOKENS = 12


class ClosedForm(Oracle):
    """Computes answers; asks `cold` for those that cannot be computed."""

    name = CLOSED_FORM

    def __init__(self, cold: Oracle, row_width: int | None = None, image: ImageShape | None = None) -> None:
        """Take the oracle to ask, the number of values of an embedding row, and the images, if prompts have any."""
        self.cold, self.row_width, self.image = cold, row_width, image

    def ask(self, question: Question) -> Answer:
        """Return the cold answer. Raises OracleError if a cold engine is needed and cannot answer."""
        if question.options.pattern is not None or question.options.stop:
            return self.cold.ask(question)
        return computed(question, self.row_width, self.image)

    def verify(self, adapters: list[str], tasks: Collection[Task] = ()) -> None:
        """Compare some answers with the cold engine. Raises OracleError if they differ, because then the computation
        does not match the worker.

        `tasks`: those of an engine that pools.
        """
        options = [PLAIN, ResponseOptions(answers=2), ResponseOptions(prompt_logprobs=True)]
        options = [ResponseOptions(pooled=task) for task in tasks] or options
        tokens = 0 if tasks else VERIFIED_TOKENS
        asked = [
            Question(some_tokens(length), adapter, tokens, response_options)
            for length, (adapter, response_options) in enumerate(
                itertools.product([None, *adapters[:2]], options), start=60
            )
        ]
        if self.row_width is not None:
            rows = tuple(row_id(f"verified {place}", place % 3) for place in range(30))
            asked += [Question((*some_tokens(start), *rows), None, VERIFIED_TOKENS) for start in (0, 33)]
        if self.image is not None:
            images = [image_positions(image_id(f"verified {i}", i), self.image.tokens) for i in range(3)]
            asked += [Question((*images[0], *some_tokens(33), *one), None, VERIFIED_TOKENS) for one in images]
        for question in asked:
            measured, computed_here = self.cold.ask(question), self.ask(question)
            if not same(question, measured, computed_here):
                raise OracleError(
                    f"the closed form and a cold engine disagree about {question}: {measured} and {computed_here}"
                )


def some_tokens(count: int) -> tuple[int, ...]:
    """Return some tokens, always the same."""
    return tuple(random.Random(count).choices(range(FIRST_TOKEN, FIRST_TOKEN + TOKENS), k=count))


def leaves(prompt: tuple[int, ...], row_width: int | None, image: ImageShape | None = None) -> tuple[int, ...]:
    """Return what enters the digests at each position of a prompt: token ids, and digests of rows or images."""
    if image is not None and has_images(prompt):
        return tuple(image_leaf(seen, image) if is_image(seen) else seen for seen in prompt)
    if row_width is None or not has_rows(prompt):
        return prompt
    digests = row_digests(row_values(prompt, row_width))
    return tuple(digest if is_row(seen) else seen for seen, digest in zip(prompt, digests, strict=True))


@functools.lru_cache(maxsize=65536)
def image_leaf(position: int, shape: ImageShape) -> int:
    """Return what enters the digests at a position of an image: a digest of what the model sees, and the position."""
    image, offset = image_and_offset(position)
    square = np.frombuffer(pixels(image, shape.side), np.uint8).reshape(shape.side, shape.side, 3)
    mean, deviation = look_of(image).mean_and_deviation
    seen = (square.transpose(2, 0, 1).astype(np.float32) - np.float32(mean)) / np.float32(deviation)
    return position_digest(pixel_digest(seen), offset)


@functools.lru_cache(maxsize=4096)
def computed(question: Question, row_width: int | None = None, image: ImageShape | None = None) -> Answer:
    """Compute an answer. Answers are cached, because every judgement of a history asks the same questions."""
    response_options = question.options
    seed = seed_of(question.adapter, question.weights)
    before = chain(leaves(question.prompt, row_width, image), start=0, before=seed, seed=seed)
    if response_options.pooled is not None:
        rows = pooled_rows(
            before if response_options.pooled.of_each_token else before[-1:], response_options.pooled.in_engine
        )
        if response_options.pooled is Task.COSINE:
            query = chain(QUERY, start=0, before=seed, seed=seed)
            other = pooled_rows(query[-1:], response_options.pooled.in_engine)
            return Answer(tokens=(), pooled=((cosine(rows[0].tolist(), other[0].tolist()) or 0.0,),))
        return Answer(tokens=(), pooled=tuple(map(tuple, rows.tolist())))
    states = [int(state) for state in before]
    sampled = [None] if response_options.answers == 1 else [SEED + i for i in range(response_options.answers)]
    first, *others = (answer(question, seed, states[-1], drawn_by) for drawn_by in sampled)
    return Answer(
        tokens=first,
        others=tuple(others),
        prompt_logprobs=scores(question, states) if response_options.prompt_logprobs else None,
        finish_reason="length",
    )


def same(question: Question, left: Answer, right: Answer) -> bool:
    """Return whether two answers are equal; a cosine up to rounding, because an engine adds in another order."""
    if question.options.pooled is Task.COSINE:
        return same_vectors(left.pooled or (), right.pooled or (), EXACT)
    return parts(left) == parts(right)


def parts(answer: Answer) -> tuple[object, ...]:
    """Return what must be equal: the token ids of all answers, the scores of the prompt, the vectors."""
    ids = tuple(ids_of(tokens) for tokens in (answer.tokens, *answer.others))
    return ids, answer.prompt_logprobs, answer.pooled


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
