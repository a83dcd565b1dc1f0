"""Reads and writes digests in the KV tensors, only through a request's block table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from coldproof.adapters.protocol.provenance import NEVER_WRITTEN, NO_BLOCK, ZEROED
from coldproof.adapters.vllm.fingerprint.digest import Digests, layer_key
from coldproof.adapters.vllm.fingerprint.topology import LayerKind, Layers


class LayerSlots:
    """The slots of one layer: a view `[blocks, slots per block]` of the KV tensor that connectors use."""

    def __init__(self, number: int, row: Layers, group: int, block: int, tensor: torch.Tensor) -> None:
        self.row, self.group, self.block = row, group, block
        self.key = np.uint64(layer_key(number))
        flat = tensor.view(torch.int64) if tensor.dtype != torch.int64 else tensor
        self.slots: Digests = flat[:, 0, :, 0].numpy().view(np.uint64)

    def read(self, blocks: Sequence[int], first: int, end: int) -> Digests:
        """Return the digests at positions `first` to `end`; NEVER_WRITTEN where the request has no block."""
        if self.row.kind is LayerKind.STATE:
            return self.gather(blocks, np.array([(end - 1) // self.block]), np.array([0]))
        positions = np.arange(first, end)
        return self.gather(blocks, positions // self.block, positions % self.block)

    def gather(self, blocks: Sequence[int], columns: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Digests:
        """Return the slots at columns of a block table and offsets in the blocks, without the layer's mask."""
        table = np.asarray(blocks, dtype=np.int64)
        present = columns < len(table)
        ids = np.where(present, table[np.minimum(columns, len(table) - 1)] if len(table) else NO_BLOCK, NO_BLOCK)
        raw = self.slots[ids, offsets]
        raw[ids == NO_BLOCK] = NEVER_WRITTEN
        unmasked = (raw == np.uint64(NEVER_WRITTEN)) | (raw == np.uint64(ZEROED))  # no layer has written these
        return np.where(unmasked, raw, raw ^ self.key)

    def write(self, blocks: Sequence[int], first: int, digests: Digests) -> None:
        """Write digests at positions from `first` on. A state layer stores only the last one."""
        end = first + len(digests)
        if self.row.kind is LayerKind.STATE:
            positions, digests, offsets = np.array([end - 1]), digests[-1:], np.array([0])
        else:
            positions = np.arange(first, end)
            offsets = positions % self.block
        ids = np.asarray(blocks, dtype=np.int64)[positions // self.block]
        present = ids != NO_BLOCK
        self.slots[ids[present], offsets[present]] = digests[present] ^ self.key


class WrongRun(msgspec.Struct, frozen=True):
    """The first run of wrong positions of a read, within one block. `found`: the content of its first slot."""

    column: int
    block: int
    first: int
    last: int
    found: int


def first_wrong(
    block_size: int,
    blocks: Sequence[int],
    positions: npt.NDArray[np.int64],
    found: Digests,
    bad: npt.NDArray[np.bool_],
) -> WrongRun:
    """Return the first run of wrong positions of a read. `bad` marks the wrong ones and has at least one."""
    at = int(np.argmax(bad))
    column = int(positions[at]) // block_size
    same = bad & (positions // block_size == column)
    run = int(np.argmin(np.append(same[at:], False)))
    return WrongRun(
        column=column,
        block=int(blocks[column]) if column < len(blocks) else NO_BLOCK,
        first=int(positions[at]),
        last=int(positions[at + run - 1]),
        found=int(found[at]),
    )
