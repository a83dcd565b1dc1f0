"""Selects the token that follows a state, and its logprobs, with or without score noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from coldproof.adapters.common.score_noise import NoiseSource
from coldproof.adapters.vllm.fingerprint.digest import (
    FIRST_TOKEN,
    TOKENS,
    Digests,
    draw,
    logprob,
    mix,
    rank_of,
    token_at_rank,
)

BitmaskRow = npt.NDArray[np.int32]  # a row of a grammar's bitmask over the vocabulary
Logprobs = npt.NDArray[np.float64]
NEVER_DRAWN = 5.0  # nats below the lowest noisy score: the score of tokens that are never drawn
SPREAD = 2.5  # nats: the standard deviation of the scores without noise where noise is added
FACTOR = np.uint64(0x9E3779B97F4A7C15)


class SampledToken(msgspec.Struct, frozen=True):
    """A token, the number that selected it, and its rank, which is above 0 if a grammar excluded better tokens.

    `scores`: the noisy scores of all tokens; None without noise, when they follow from the number.
    """

    token: int
    number: int
    rank: int = 0
    scores: Logprobs | None = None


class Scores:
    """Selects and scores the tokens of one engine. With a noise source, the results differ in each call.

    Without noise, the second best token is always two nats behind, so that realistic noise would never change a token.
    With noise, each state has normally distributed scores for all tokens. Their spread is such that about one token in
    500 has a margin below 0.002 nats, as in a real model. Noise is added to the scores before the token is chosen.
    """

    def __init__(self, noise: NoiseSource | None) -> None:
        self.noise = noise

    def sample(
        self, state: int, sampling: Any, position: int, context: bytes, allowed: BitmaskRow | None
    ) -> SampledToken:
        """Return the token after a state. A sampled request without a seed gets the greedy token.

        `context`: what noise may depend on. `allowed`: the tokens that a grammar permits; None without a grammar.
        """
        number = draw(state, seed=sampling.seed if sampling.temperature > 0 else None, position=position)
        tokens: Iterable[int] = (token_at_rank(number, rank) for rank in range(TOKENS))
        row = None
        if self.noise is not None:
            (row,) = noisy_logprobs(self.noise, [number], context)
            tokens = (FIRST_TOKEN + int(index) for index in np.argsort(-row))
        for rank, token in enumerate(tokens):
            if allowed is None or permits(allowed, token):
                return SampledToken(token, number, rank, row)
        assert allowed is not None
        # The smallest permitted token. If no printable token is permitted, this is the end of the answer.
        token = next(token for token in range(32 * len(allowed)) if permits(allowed, token))
        return SampledToken(token, number, TOKENS, row)

    def score_prompt(
        self, table: LogprobsTensors, start: int, states: Digests, tokens: Sequence[int], context: bytes
    ) -> None:
        """Write the scores of prompt tokens into the rows of a table from `start` on. `states` precede the tokens."""
        numbers = [draw(int(state), seed=None, position=0) for state in states]
        if self.noise is None:
            scored = [SampledToken(token, n, rank_of(n, token)) for token, n in zip(tokens, numbers, strict=True)]
        else:
            rows = noisy_logprobs(self.noise, numbers, context)
            ranks = [int((row > noisy_score(row, token)).sum()) for row, token in zip(rows, tokens, strict=True)]
            scored = [SampledToken(*one) for one in zip(tokens, numbers, ranks, rows, strict=True)]
        at = slice(start, start + len(scored))
        ids, scores, one_based = score_rows(scored, table.logprobs.shape[1] - 1)
        table.logprob_token_ids[at] = torch.tensor(ids)
        table.logprobs[at] = torch.from_numpy(np.array(scores))
        table.selected_token_ranks[at] = torch.tensor(one_based)


def noisy_logprobs(noise: NoiseSource, numbers: list[int], context: bytes) -> Logprobs:
    """Return noisy logprobs for each number, in nats: `[numbers, tokens]`."""
    column = np.array(numbers, np.uint64)[:, None]
    keys = mix(column + np.arange(1, TOKENS + 1, dtype=np.uint64)[None, :] * FACTOR)
    first = ((keys >> np.uint64(32)).astype(np.float64) + 0.5) / 2**32
    second = (keys & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32
    normal = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
    scores = SPREAD * normal + noise.draw((len(numbers), TOKENS), context)
    scores -= scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)))


def noisy_score(row: Logprobs, token: int) -> float:
    """Return the noisy score of a token."""
    index = token - FIRST_TOKEN
    return float(row[index] if 0 <= index < TOKENS else row.min() - NEVER_DRAWN)


def permits(allowed: BitmaskRow, token: int) -> bool:
    """Return whether a row of a bitmask contains a token."""
    return bool(int(allowed[token >> 5]) >> (token & 31) & 1)


def score_rows(drawn: list[SampledToken], wanted: int) -> tuple[list[list[int]], list[list[np.float32]], list[int]]:
    """Return token ids, scores and ranks in vLLM's form: for each token, itself and then the `wanted` best ones."""
    best = range(wanted)
    ids, scores = [], []
    for one in drawn:
        if one.scores is None:
            ids.append([one.token, *(token_at_rank(one.number, rank) for rank in best)])
            scores.append([logprob(one.number, one.rank), *(logprob(one.number, rank) for rank in best)])
        else:
            order = np.argsort(-one.scores)[:wanted]
            ids.append([one.token, *(FIRST_TOKEN + int(index) for index in order)])
            scores.append([np.float32(score) for score in (noisy_score(one.scores, one.token), *one.scores[order])])
    return ids, scores, [one.rank + 1 for one in drawn]


def logprobs_of(answers: list[list[SampledToken]], wanted: list[int | None]) -> LogprobsLists | None:
    """Return the logprobs of a step's tokens, request after request; None if no request wants logprobs."""
    width = max((count for count in wanted if count is not None), default=None)
    if width is None:
        return None
    ids, scores, ranks, starts = [], [], [], [0]
    for drawn in answers:
        rows = score_rows(drawn or [SampledToken(0, 0)], width)  # vLLM expects a row for a request in prefill, too
        ids += rows[0]
        scores += rows[1]
        ranks += rows[2]
        starts.append(len(ids))
    return LogprobsLists(np.array(ids, np.int32), np.array(scores, np.float32), np.array(ranks, np.int32), starts)


def grammar_rows(grammar: Any, drafts: dict[str, int]) -> dict[str, Any]:
    """Return request -> its rows of the grammar's bitmask: one for the next token and one after each draft."""
    rows, at = {}, 0
    for name in grammar.structured_output_request_ids if grammar is not None else ():
        count = 1 + drafts.get(name, 0)
        rows[name] = grammar.grammar_bitmask[at : at + count]
        at += count
    return rows
