"""The KV tensors, and how digests get in and out of them: only ever through a request's block table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from adapters.fingerprint.digest import Digests, layer_key
from adapters.fingerprint.topology import Kind, Layers
from adapters.provenance import NEVER_WRITTEN, NO_BLOCK, ZEROED


class LayerSlots:
    """One layer's slots: `[blocks, slots of a block]` of digests, a view into the tensor that connectors see."""

    def __init__(self, number: int, row: Layers, group: int, block: int, tensor: torch.Tensor) -> None:
        self.row, self.group, self.block = row, group, block
        self.key = np.uint64(layer_key(number))
        flat = tensor.view(torch.int64) if tensor.dtype != torch.int64 else tensor
        self.slots: Digests = flat[:, 0, :, 0].numpy().view(np.uint64)

    def read(self, blocks: Sequence[int], first: int, end: int) -> Digests:
        """What lies at positions `first` to `end`; NEVER_WRITTEN where the request holds no block."""
        if self.row.kind is Kind.STATE:
            return self.gather(blocks, np.array([(end - 1) // self.block]), np.array([0]))
        positions = np.arange(first, end)
        return self.gather(blocks, positions // self.block, positions % self.block)

    def gather(self, blocks: Sequence[int], columns: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Digests:
        """The slots at columns of a block table, unmasked."""
        table = np.asarray(blocks, dtype=np.int64)
        held = columns < len(table)
        ids = np.where(held, table[np.minimum(columns, len(table) - 1)] if len(table) else NO_BLOCK, NO_BLOCK)
        raw = self.slots[ids, offsets]
        raw[ids == NO_BLOCK] = NEVER_WRITTEN
        untouched = (raw == np.uint64(NEVER_WRITTEN)) | (raw == np.uint64(ZEROED))  # by any layer: nothing to unmask
        return np.where(untouched, raw, raw ^ self.key)

    def write(self, blocks: Sequence[int], first: int, digests: Digests) -> None:
        """Put digests at positions from `first` on; a state layer keeps the last one only."""
        end = first + len(digests)
        if self.row.kind is Kind.STATE:
            positions, digests, offsets = np.array([end - 1]), digests[-1:], np.array([0])
        else:
            positions = np.arange(first, end)
            offsets = positions % self.block
        ids = np.asarray(blocks, dtype=np.int64)[positions // self.block]
        mine = ids != NO_BLOCK
        self.slots[ids[mine], offsets[mine]] = digests[mine] ^ self.key


class WrongRun(msgspec.Struct, frozen=True):
    """The first wrong position of a read and those that follow it within its block, and what lay there."""

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
    """Where a read that has wrong slots goes wrong first."""
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
