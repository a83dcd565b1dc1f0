"""From the state at a position to the token there, with the scores that were asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from adapters.fingerprint.digest import FIRST_TOKEN, TOKENS, draw, logprob, rank_of, ranked

Allowed = npt.NDArray[np.int32]  # a row of a grammar's bitmask over the vocabulary
NEVER_DRAWN = 5.0  # nats behind the worst of the others, where scores are noisy: a token that no state has


class Drawn(msgspec.Struct, frozen=True):
    """A token, the number it was chosen by, and its rank: other than 0 where a grammar forbade better ones.

    `scores`: of all tokens, where they do not follow from the number alone; see `noisy`.
    """

    token: int
    number: int
    rank: int = 0
    scores: npt.NDArray[np.float64] | None = None


def sample(state: int, sampling: Any, position: int, allowed: Allowed | None = None) -> Drawn:
    """The token behind a state. A request that is to be random without a seed gets the greedy answer."""
    seed = sampling.seed if sampling.temperature > 0 else None
    number = draw(state, seed=seed, position=position)
    if allowed is None:
        return Drawn(ranked(number, 0), number)
    for rank in range(TOKENS):
        token = ranked(number, rank)
        if permits(allowed, token):
            return Drawn(token, number, rank)
    return Drawn(first_permitted(allowed), number, TOKENS)


def permits(allowed: Allowed, token: int) -> bool:
    """Whether a bitmask's row has a token."""
    return bool(int(allowed[token >> 5]) >> (token & 31) & 1)


def first_permitted(allowed: Allowed) -> int:
    """The smallest token that a row has: the end of the answer, where no printable one is left."""
    return next(token for token in range(32 * len(allowed)) if permits(allowed, token))


def score_rows(drawn: list[Drawn], wanted: int) -> tuple[list[list[int]], list[list[np.float32]], list[int]]:
    """Token ids, scores and ranks as vLLM has them: the chosen one, then the `wanted` best, for each token."""
    best = range(wanted)
    ids, scores = [], []
    for one in drawn:
        if one.scores is None:
            ids.append([one.token, *(ranked(one.number, rank) for rank in best)])
            scores.append([logprob(one.number, one.rank), *(logprob(one.number, rank) for rank in best)])
        else:
            order = np.argsort(-one.scores)[:wanted]
            ids.append([one.token, *(FIRST_TOKEN + int(index) for index in order)])
            scores.append([np.float32(score_of(one)), *(np.float32(one.scores[index]) for index in order)])
    return ids, scores, [one.rank + 1 for one in drawn]


def score_of(one: Drawn) -> float:
    """A token's score among noisy ones."""
    assert one.scores is not None
    index = one.token - FIRST_TOKEN
    return float(one.scores[index] if 0 <= index < TOKENS else one.scores.min() - NEVER_DRAWN)


def logprobs_of(answers: list[tuple[list[Drawn], int | None]]) -> LogprobsLists | None:
    """The scores of a step's tokens, request after request; None when nobody wants any."""
    wanted = [count for _, count in answers if count is not None]
    if not wanted:
        return None
    width = max(wanted)
    ids, scores, ranks, starts = [], [], [], [0]
    for drawn, _ in answers:
        rows = score_rows(drawn or [Drawn(0, 0)], width)  # vLLM keeps a row for a request that is still in prefill
        ids += rows[0]
        scores += rows[1]
        ranks += rows[2]
        starts.append(len(ids))
    return LogprobsLists(np.array(ids, np.int32), np.array(scores, np.float32), np.array(ranks, np.int32), starts)


def score_prompt(table: LogprobsTensors, row: int, token: int, before: int, wanted: int) -> None:
    """Write the scores of a prompt's token, behind the digest of those before it, into a row of a table."""
    number = draw(before, seed=None, position=row + 1)
    ids, scores, ranks = score_rows([Drawn(token, number, rank_of(number, token))], wanted)
    table.logprob_token_ids[row] = torch.tensor(ids[0])
    table.logprobs[row] = torch.from_numpy(np.array(scores[0]))
    table.selected_token_ranks[row] = ranks[0]
