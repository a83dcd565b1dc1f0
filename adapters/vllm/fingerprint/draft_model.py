"""The draft model of the fingerprint worker: layers of its own in the blocks of the other layers.

As in vLLM, it computes the same positions as the model, after it in the same step, also of prompts that are computed in
chunks. No answer depends on its slots: if one that it reads is wrong, its drafts are wrong, and are rejected.

An EAGLE head and one of multi-token prediction (MTP) compute a position from the model's state there and from the next
token, so that a slot depends on one token more. A block is therefore right only for prompts that agree with its
writer's on one token behind it, which is why vLLM drops the last block of each hit (`use_eagle_block_drop`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from coldproof.adapters.vllm.fingerprint.digest import MASK, Digests, wrong_read_drift
from coldproof.adapters.vllm.fingerprint.kv_slots import LayerSlots
from coldproof.adapters.vllm.fingerprint.sequences import Sequence

N_GRAM, DRAFT_MODEL, EAGLE, MTP = METHODS = ("ngram", "draft_model", "eagle", "mtp")


def has_draft_model(config: Any) -> bool:
    """Return whether drafts come from a model with KV of its own."""
    return config.speculative_config is not None and config.speculative_config.method != N_GRAM


class DraftModel:
    """The slots of a draft model; without layers, drafts depend on no KV, as those of n-grams.

    `ahead`: how many tokens behind a position its slots depend on: 1 of those of heads.
    """

    def __init__(self, layers: dict[str, LayerSlots], *, ahead: int = 0) -> None:
        self.layers, self.ahead = layers, ahead

    def compute(self, computed: Iterable[tuple[Sequence, int, int]]) -> dict[str, int]:
        """Write and read the slots of the step's positions, each (request, first, end). All are written before any is
        read. Return request -> what its wrong slots add to the state that its drafts follow; 0 if all are correct.
        """
        ahead = self.ahead
        steps = [
            (sequence, first, sequence.expected(sequence.seed or 0)[ahead : end + ahead])
            for sequence, first, end in computed
        ]
        for sequence, first, expected in steps:
            self.write(sequence, first, expected[first:])
        drifts = {}
        for sequence, first, expected in steps:
            drifts[sequence.name] = drift = self.drift(sequence, expected[:first])
            if drift:
                self.write(sequence, first, expected[first:] + np.array([drift], np.uint64))
        return drifts

    def write(self, sequence: Sequence, first: int, digests: Digests) -> None:
        """Write digests at the positions of a request from `first` on."""
        for layer in self.layers.values():
            if len(digests):
                layer.write(sequence.blocks[layer.group], first, digests)

    def drift(self, sequence: Sequence, expected: Digests) -> int:
        """Read the slots of the positions before a step, and return what the wrong ones add to a state."""
        drift, end = 0, len(expected)
        for layer in self.layers.values() if end else ():
            found = layer.read(sequence.blocks[layer.group], 0, end)
            bad = found != expected
            if bad.any():
                drift += wrong_read_drift(found[bad], expected[bad], np.arange(end)[bad])
        return drift & MASK
