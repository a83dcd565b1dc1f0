"""Reads and writes digests in the KV tensors, only through a request's block table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from coldproof.adapters.protocol.provenance import NEVER_WRITTEN, NO_BLOCK, ZEROED
from coldproof.adapters.vllm.fingerprint.digest import Digests, layer_key
from coldproof.adapters.vllm.fingerprint.topology import LayerKind, Layers

Numbers = npt.NDArray[np.int64]


class LayerSlots:
    """The slots of one layer: a view `[blocks, slots per block]` of the KV tensor that connectors use."""

    def __init__(self, number: int, row: Layers, group: int, block: int, tensor: torch.Tensor) -> None:
        self.row, self.group, self.block = row, group, block
        self.key = np.uint64(layer_key(number))
        flat = tensor.view(torch.int64) if tensor.dtype != torch.int64 else tensor
        self.slots: Digests = flat[:, 0, :, 0].numpy().view(np.uint64)

    def places(self, first: int, end: int) -> tuple[Numbers, Numbers]:
        """Return the columns in a block table and the offsets in the blocks: of positions or of a state."""
        if self.row.kind is LayerKind.STATE:
            return np.array([(end - 1) // self.block]), np.array([0])
        positions = np.arange(first, end)
        return positions // self.block, positions % self.block

    def read(self, blocks: Sequence[int] | Numbers, first: int, end: int) -> Digests:
        """Return the digests at positions `first` to `end`; NEVER_WRITTEN where the request has no block."""
        columns, offsets = self.places(first, end)
        table = np.asarray(blocks, dtype=np.int64)
        present = columns < len(table)
        ids = np.where(present, table[np.minimum(columns, len(table) - 1)] if len(table) else NO_BLOCK, NO_BLOCK)
        raw = self.slots[ids, offsets]
        raw[ids == NO_BLOCK] = NEVER_WRITTEN
        unmasked = (raw == np.uint64(NEVER_WRITTEN)) | (raw == np.uint64(ZEROED))  # no layer has written these
        return np.where(unmasked, raw, raw ^ self.key)

    def write(self, blocks: Sequence[int], first: int, digests: Digests) -> None:
        """Write digests at positions from `first` on. A state layer stores only the last one."""
        columns, offsets = self.places(first, first + len(digests))
        ids = np.asarray(blocks, dtype=np.int64)[columns]
        present = ids != NO_BLOCK
        self.slots[ids[present], offsets[present]] = digests[-len(ids) :][present] ^ self.key


def first_run(columns: Numbers, bad: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first and the last index of the first run of `bad` in one column. At least one must be bad."""
    first = int(np.argmax(bad))
    same = bad & (columns == columns[first])
    return first, first + int(np.argmin(np.append(same[first:], False))) - 1
