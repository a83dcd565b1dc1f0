"""Selects the token that follows a state, and its logprobs."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from coldproof.adapters.vllm.fingerprint.digest import FIRST_TOKEN, TOKENS, draw, logprob, rank_of, token_at_rank

BitmaskRow = npt.NDArray[np.int32]  # a row of a grammar's bitmask over the vocabulary
NEVER_DRAWN = 5.0  # nats below the lowest noisy score: the score of tokens that are never drawn


class SampledToken(msgspec.Struct, frozen=True):
    """A token, the number that selected it, and its rank, which is above 0 if a grammar excluded better tokens.

    `scores`: the noisy scores of all tokens; None without noise, when they follow from the number.
    """

    token: int
    number: int
    rank: int = 0
    scores: npt.NDArray[np.float64] | None = None


def sample(state: int, sampling: Any, position: int, allowed: BitmaskRow | None = None) -> SampledToken:
    """Return the token after a state. A sampled request without a seed gets the greedy token."""
    seed = sampling.seed if sampling.temperature > 0 else None
    number = draw(state, seed=seed, position=position)
    if allowed is None:
        return SampledToken(token_at_rank(number, 0), number)
    for rank in range(TOKENS):
        token = token_at_rank(number, rank)
        if permits(allowed, token):
            return SampledToken(token, number, rank)
    return SampledToken(first_permitted(allowed), number, TOKENS)


def permits(allowed: BitmaskRow, token: int) -> bool:
    """Return whether a row of a bitmask contains a token."""
    return bool(int(allowed[token >> 5]) >> (token & 31) & 1)


def first_permitted(allowed: BitmaskRow) -> int:
    """Return the smallest permitted token. If no printable token is permitted, this is the end of the answer."""
    return next(token for token in range(32 * len(allowed)) if permits(allowed, token))


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
            scores.append([np.float32(noisy_score(one)), *(np.float32(one.scores[index]) for index in order)])
    return ids, scores, [one.rank + 1 for one in drawn]


def noisy_score(one: SampledToken) -> float:
    """Return the noisy score of a token."""
    assert one.scores is not None
    index = one.token - FIRST_TOKEN
    return float(one.scores[index] if 0 <= index < TOKENS else one.scores.min() - NEVER_DRAWN)


def logprobs_of(answers: list[tuple[list[SampledToken], int | None]]) -> LogprobsLists | None:
    """Return the logprobs of a step's tokens, request after request; None if no request wants logprobs."""
    wanted = [count for _, count in answers if count is not None]
    if not wanted:
        return None
    width = max(wanted)
    ids, scores, ranks, starts = [], [], [], [0]
    for drawn, _ in answers:
        rows = score_rows(drawn or [SampledToken(0, 0)], width)  # vLLM expects a row for a request in prefill, too
        ids += rows[0]
        scores += rows[1]
        ranks += rows[2]
        starts.append(len(ids))
    return LogprobsLists(np.array(ids, np.int32), np.array(scores, np.float32), np.array(ranks, np.int32), starts)


def score_prompt(table: LogprobsTensors, row: int, token: int, before: int, wanted: int) -> None:
    """Write the scores of a prompt token into a row of a table. `before`: the digest of the previous position."""
    number = draw(before, seed=None, position=row + 1)
    ids, scores, ranks = score_rows([SampledToken(token, number, rank_of(number, token))], wanted)
    table.logprob_token_ids[row] = torch.tensor(ids[0])
    table.logprobs[row] = torch.from_numpy(np.array(scores[0]))
    table.selected_token_ranks[row] = ranks[0]
