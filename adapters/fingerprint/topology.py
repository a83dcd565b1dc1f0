"""Which layers the worker says it has: rows of kind, block size, window and number of layers. Plain data."""

from __future__ import annotations

import enum
import json

import msgspec

from adapters.base import GroupShape

WORKER = "adapters.fingerprint.worker.FingerprintWorker"
OPTIONS = "coldproof"  # the key of ours in --additional-config


class Kind(enum.StrEnum):
    """How much of what came before a layer reads, and how vLLM is told."""

    FULL = "full attention"
    WINDOW = "sliding window"
    MLA = "MLA"
    WINDOW_MLA = "sliding-window MLA"
    STATE = "state"  # Mamba and linear attention: one state that has seen everything, kept at block ends


class Layers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Layers of one kind. `block` None: the engine's own block size."""

    kind: Kind
    layers: int = 2
    block: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a window where none belongs, or none where one does."""
        if (self.window is not None) != (self.kind in (Kind.WINDOW, Kind.WINDOW_MLA)):
            raise ValueError(f"layers of kind '{self.kind}' with a window of {self.window}")
        if self.layers < 1 or (self.block is not None and self.block < 1) or (self.window or 1) < 1:
            raise ValueError("layers, blocks and windows are positive numbers")

    def first_read(self, position: int) -> int:
        """The first position that is read for computing the token at `position`."""
        if self.kind is Kind.STATE:
            return max(0, position - 1)
        return 0 if self.window is None else max(0, position - self.window + 1)


Topology = tuple[Layers, ...]

PLAIN: Topology = (Layers(kind=Kind.FULL),)
TOPOLOGIES: dict[str, Topology] = {
    "full": PLAIN,
    "window": (Layers(kind=Kind.WINDOW, window=64, layers=4), Layers(kind=Kind.FULL, layers=2)),
    "two-windows": (
        Layers(kind=Kind.WINDOW, window=64, layers=2),
        Layers(kind=Kind.WINDOW, window=128, layers=2),
        Layers(kind=Kind.FULL, layers=2),
    ),
    # DeepSeek-V4-Flash as its report lists it: groups with blocks of 256, 64, 64, 4 and 8 tokens (a kin of vllm#32802).
    # The layers of one kind are twice as many: vLLM makes groups of equal size.
    "five-groups": (
        Layers(kind=Kind.MLA, block=256, layers=2),
        Layers(kind=Kind.WINDOW_MLA, block=64, window=128, layers=4),
        Layers(kind=Kind.WINDOW_MLA, block=4, window=128, layers=2),
        Layers(kind=Kind.WINDOW_MLA, block=8, window=128, layers=2),
    ),
    "state-blocks": (
        Layers(kind=Kind.STATE, layers=2),
        Layers(kind=Kind.WINDOW, block=8, window=64, layers=2),
        Layers(kind=Kind.FULL, block=64, layers=2),
    ),
    "state": (Layers(kind=Kind.STATE, layers=2), Layers(kind=Kind.FULL, layers=2)),
}


def group_shapes(topology: Topology, default_block: int) -> tuple[GroupShape, ...]:
    """What a request needs of the pool: at most a group for each layer, at most a block for each of its tokens."""
    return tuple(GroupShape(row.block or default_block) for row in topology for _ in range(row.layers))


def flags(topology: Topology) -> list[str]:
    """What makes a vLLM engine use the worker with these layers."""
    options = json.dumps({OPTIONS: {"topology": msgspec.to_builtins(topology)}})
    given = ["--worker-cls", WORKER, "--additional-config", options]
    aligned = any(row.kind is Kind.STATE for row in topology)
    return [*given, "--mamba-cache-mode", "align"] if aligned else given


def read(rows: object) -> Topology:
    """From decoded JSON. Raises ValueError for rows that are none."""
    try:
        return msgspec.convert(rows, Topology)
    except msgspec.ValidationError as problem:
        raise ValueError(f"no topology: {problem}") from problem
