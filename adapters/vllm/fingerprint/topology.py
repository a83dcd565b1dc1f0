"""Topologies: the layers that the fingerprint worker declares, as rows of kind, block size, window and count."""

from __future__ import annotations

import enum
import json

import msgspec

from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import GroupShape

WORKER = "coldproof.adapters.vllm.fingerprint.worker.FingerprintWorker"
STATES_AT_BLOCK_ENDS = "align"  # of vLLM's modes for the cache of states
OPTIONS = "coldproof"  # Coldproof's key in --additional-config
CHANGED = "changed"  # the key for what is different about the engine


class LayerKind(enum.StrEnum):
    """Which part of the context a layer reads, and which KV-cache spec vLLM gets for it."""

    FULL = "full attention"
    WINDOW = "sliding window"
    MLA = "MLA"
    WINDOW_MLA = "sliding-window MLA"
    STATE = "state"  # Mamba and linear attention: one state of the whole context, stored at block ends


class Layers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Layers of one kind. `block`: tokens per block; None: the engine's block size. `window`: tokens."""

    kind: LayerKind
    layers: int = 2
    block: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a missing or unexpected window and for numbers below 1."""
        if (self.window is not None) != (self.kind in (LayerKind.WINDOW, LayerKind.WINDOW_MLA)):
            raise ValueError(f"invalid window for layers of kind '{self.kind}': {self.window}")
        if self.layers < 1 or (self.block is not None and self.block < 1) or (self.window or 1) < 1:
            raise ValueError("layers, blocks and windows must be positive numbers")

    def first_read(self, position: int) -> int:
        """Return the first position that the layer reads to compute the token at `position`."""
        if self.kind is LayerKind.STATE:
            return max(0, position - 1)
        return 0 if self.window is None else max(0, position - self.window + 1)


Topology = tuple[Layers, ...]

FULL_ATTENTION: Topology = (Layers(kind=LayerKind.FULL),)
TOPOLOGIES: dict[str, Topology] = {
    "full": FULL_ATTENTION,
    "window": (Layers(kind=LayerKind.WINDOW, window=64, layers=4), Layers(kind=LayerKind.FULL, layers=2)),
    "two-windows": (
        Layers(kind=LayerKind.WINDOW, window=64, layers=2),
        Layers(kind=LayerKind.WINDOW, window=128, layers=2),
        Layers(kind=LayerKind.FULL, layers=2),
    ),
    # The layout of DeepSeek-V4-Flash in a report similar to vllm#32802: groups with blocks of 256, 64, 64, 4 and 8
    # tokens. One kind has four layers, because vLLM makes groups of equal size: they become two groups. The windows are
    # those of its source (vllm/models/deepseek_v4/compressor.py, CompressorStateCache).
    "five-groups": (
        Layers(kind=LayerKind.MLA, block=256, layers=2),
        Layers(kind=LayerKind.WINDOW_MLA, block=64, window=128, layers=4),
        Layers(kind=LayerKind.WINDOW_MLA, block=4, window=8, layers=2),
        Layers(kind=LayerKind.WINDOW_MLA, block=8, window=128, layers=2),
    ),
    "state-blocks": (
        Layers(kind=LayerKind.STATE, layers=2),
        Layers(kind=LayerKind.WINDOW, block=8, window=64, layers=2),
        Layers(kind=LayerKind.FULL, block=64, layers=2),
    ),
    "state": (Layers(kind=LayerKind.STATE, layers=2), Layers(kind=LayerKind.FULL, layers=2)),
}


def group_shapes(topology: Topology, default_block: int) -> tuple[GroupShape, ...]:
    """Return an upper bound of a request's KV-cache groups: one group per layer."""
    return tuple(GroupShape(row.block or default_block) for row in topology for _ in range(row.layers))


def topology_flags(topology: Topology, changed: EngineChange = EngineChange.NOTHING) -> list[str]:
    """Return the flags with which a vLLM engine uses the fingerprint worker with these layers.

    `changed`: what is different about the engine. It changes all digests, as it changes the KV of a model.
    """
    different = {} if changed is EngineChange.NOTHING else {CHANGED: changed.value}
    options = json.dumps({OPTIONS: {"topology": msgspec.to_builtins(topology), **different}})
    worker_flags = ["--worker-cls", WORKER, "--additional-config", options]
    return [*worker_flags, "--mamba-cache-mode", STATES_AT_BLOCK_ENDS] if has_states(topology) else worker_flags


def has_states(topology: Topology) -> bool:
    """Return whether a topology has layers with a state."""
    return any(row.kind is LayerKind.STATE for row in topology)


def read_topology(rows: object) -> Topology:
    """Return the topology of decoded JSON. Raises ValueError for invalid rows."""
    try:
        return msgspec.convert(rows, Topology)
    except msgspec.ValidationError as problem:
        raise ValueError(f"invalid topology: {problem}") from problem
