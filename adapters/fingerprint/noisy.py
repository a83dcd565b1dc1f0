"""Scores for the worker without a model when it is to be noisy: close calls happen, as in a model.

Plain, the runner-up is always two nats behind, and no noise worth the name would ever change a token. Here each state
has scores of its own for all tokens: normally distributed, so wide that one token in some five hundred has a runner-up
within 0.002 nats, as in a real model. Noise is added to them before the token is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.outputs import LogprobsTensors

from adapters.fingerprint.digest import FIRST_TOKEN, TOKEN_KEY, TOKENS, Digests, draw, mix
from adapters.fingerprint.sampler import NEVER_DRAWN, Allowed, Drawn, first_permitted, permits
from adapters.noise import Source

SPREAD = 2.5  # nats
FACTOR = np.uint64(0x9E3779B97F4A7C15)
Scores = npt.NDArray[np.float64]


def scores_of(numbers: Digests) -> Scores:
    """A row for each number, a column for each token: scores before any noise, not normalised."""
    keys = mix(numbers[:, None] + np.arange(1, TOKENS + 1, dtype=np.uint64)[None, :] * FACTOR)
    first = ((keys >> np.uint64(32)).astype(np.float64) + 0.5) / 2**32
    second = (keys & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32
    return np.asarray(SPREAD * np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second))


def normalised(scores: Scores) -> Scores:
    """As logarithms of probabilities."""
    top = scores.max(axis=1, keepdims=True)
    return np.asarray(scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True)))


class NoisyScores:
    """Tokens and scores of one engine, each time otherwise."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def rows(self, numbers: Digests, company: bytes) -> Scores:
        """Log-probabilities behind each number."""
        clean = scores_of(numbers)
        return normalised(clean + self.source.draw((len(numbers), TOKENS), company))

    def sample(self, state: int, sampling: Any, position: int, company: bytes, allowed: Allowed | None = None) -> Drawn:
        """The token behind a state, among those that a grammar allows."""
        number = draw(state, seed=sampling.seed if sampling.temperature > 0 else None, position=position)
        (row,) = self.rows(np.array([number], np.uint64), company)
        for rank, index in enumerate(np.argsort(-row)):
            if allowed is None or permits(allowed, FIRST_TOKEN + int(index)):
                return Drawn(FIRST_TOKEN + int(index), number, rank, row)
        assert allowed is not None
        return Drawn(first_permitted(allowed), number, TOKENS, row)

    def prompt(
        self, table: LogprobsTensors, start: int, states: Digests, tokens: Sequence[int], company: bytes
    ) -> None:
        """Write the scores of a prompt's tokens, each behind the state before it, into a table's rows from `start`."""
        rows = self.rows(mix(states ^ np.uint64(TOKEN_KEY)), company)
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
