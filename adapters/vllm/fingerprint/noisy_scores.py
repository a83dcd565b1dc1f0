"""Scores of the fingerprint worker with score noise.

Without noise, the second best token is always two nats behind, so that realistic noise would never change a token. With
noise, each state has normally distributed scores for all tokens. Their spread is such that about one token in 500 has a
margin below 0.002 nats, as in a real model. Noise is added to the scores before the token is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import LogprobsTensors

from coldproof.adapters.common.score_noise import NoiseSource
from coldproof.adapters.vllm.fingerprint.digest import FIRST_TOKEN, TOKEN_KEY, TOKENS, Digests, draw, mix
from coldproof.adapters.vllm.fingerprint.sampler import NEVER_DRAWN, BitmaskRow, SampledToken, first_permitted, permits

SPREAD = 2.5  # nats
FACTOR = np.uint64(0x9E3779B97F4A7C15)
Scores = npt.NDArray[np.float64]


def scores_of(numbers: Digests) -> Scores:
    """Return the scores without noise, not normalised: `[numbers, tokens]`."""
    keys = mix(numbers[:, None] + np.arange(1, TOKENS + 1, dtype=np.uint64)[None, :] * FACTOR)
    first = ((keys >> np.uint64(32)).astype(np.float64) + 0.5) / 2**32
    second = (keys & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32
    return np.asarray(SPREAD * np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second))


def normalised(scores: Scores) -> Scores:
    """Return the scores as logprobs, in nats."""
    top = scores.max(axis=1, keepdims=True)
    return np.asarray(scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True)))


class NoisyScores:
    """Draws the noisy tokens and scores of one engine. They differ in each call."""

    def __init__(self, source: NoiseSource) -> None:
        self.source = source

    def rows(self, numbers: Digests, context: bytes) -> Scores:
        """Return the noisy logprobs for each number: `[numbers, tokens]`."""
        clean = scores_of(numbers)
        return normalised(clean + self.source.draw((len(numbers), TOKENS), context))

    def sample(
        self, state: int, sampling: Any, position: int, context: bytes, allowed: BitmaskRow | None = None
    ) -> SampledToken:
        """Return the token after a state. `allowed`: the tokens that a grammar permits."""
        number = draw(state, seed=sampling.seed if sampling.temperature > 0 else None, position=position)
        (row,) = self.rows(np.array([number], np.uint64), context)
        for rank, index in enumerate(np.argsort(-row)):
            if allowed is None or permits(allowed, FIRST_TOKEN + int(index)):
                return SampledToken(FIRST_TOKEN + int(index), number, rank, row)
        assert allowed is not None
        return SampledToken(first_permitted(allowed), number, TOKENS, row)

    def score_prompt(
        self, table: LogprobsTensors, start: int, states: Digests, tokens: Sequence[int], context: bytes
    ) -> None:
        """Write the scores of prompt tokens into the rows of a table from `start` on. `states` precede the tokens."""
        rows = self.rows(mix(states ^ np.uint64(TOKEN_KEY)), context)
        ids = np.asarray(tokens)
        known = (ids >= FIRST_TOKEN) & (ids < FIRST_TOKEN + TOKENS)
        own = rows[np.arange(len(ids)), np.where(known, ids - FIRST_TOKEN, 0)]
        own = np.where(known, own, rows.min(axis=1) - NEVER_DRAWN)
        best = np.argsort(-rows, axis=1)[:, : table.logprobs.shape[1] - 1]
        at = slice(start, start + len(ids))
        table.logprob_token_ids[at] = torch.from_numpy(np.column_stack([ids, best + FIRST_TOKEN]))
        scores = np.column_stack([own, np.take_along_axis(rows, best, axis=1)])
        table.logprobs[at] = torch.from_numpy(scores.astype(np.float32))
        table.selected_token_ranks[at] = torch.from_numpy((rows > own[:, None]).sum(axis=1) + 1)
