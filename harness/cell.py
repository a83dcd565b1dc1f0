"""One named engine configuration: what it is called, what it is for, and the flags behind it."""

from __future__ import annotations

import importlib.util

import msgspec

KEYS = ("GROUND", "LORA", "SALT", "CHAT", "REUSE", "SURFACE", "CTRL-1")  # the room is not what matters
ROOM = ("PRESS", "PREEMPT", "CTRL", "MIXED")  # the pool has to be small
MOST_REQUESTS, CHUNK_TOKENS = "--max-num-seqs", "--max-num-batched-tokens"
CHUNK_OF_ONE = "--long-prefill-token-threshold"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration: its flags, in a line what it is for, and which requirements (by the start of their ids).

    `lossy`: what its mode may change in answers by design, and why; those are judged by what the mode promises (see
    harness/moved.py). `alike`: its cold answers are the default cell's, so that one cold engine serves both.
    `in_process`: it can be stepped in this process, several engines of it side by side.
    """

    name: str
    about: str
    arguments: tuple[str, ...] = ()
    areas: tuple[str, ...] = (*KEYS, *ROOM, "GROUP", "EVENT", "TIER")
    alike: bool = True
    in_process: bool = True
    sliding_window: bool = False  # the tiny model with sliding-window layers instead of the plain one
    topology: str = "full"  # the layers that the fingerprint worker says it has
    tier: str | None = None  # the second KV tier: see adapters/tiers.py
    package: str | None = None  # of Python, that the engine needs beside its own
    numeric: bool = False  # about numbers, of which the fingerprint worker has none
    events: bool = False  # KV events are published
    only_fingerprint: bool = False  # layers that no model small enough for a CPU has
    lossy: str = ""  # in words that follow "lossy mode:"
    engine: str = "vllm"  # whose flags these are

    def covers(self, requirement_id: str) -> bool:
        """Whether a requirement is worth testing here."""
        return requirement_id.startswith(self.areas)

    def fits(self, engine: str) -> bool:
        """Whether an engine of this adapter can be started so: vLLM's cells are for both of its adapters."""
        stepped = engine == "vllm-inproc"
        return self.engine == ("vllm" if stepped else engine) and (self.in_process or not stepped)

    def is_for(self, fingerprint: bool) -> bool:
        """Whether the engine with (or without) the fingerprint worker can be started so."""
        return not self.numeric if fingerprint else not self.only_fingerprint

    @property
    def installed(self) -> bool:
        """Whether the package that it needs is there."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    @property
    def chunked(self) -> bool:
        """Whether even a short prompt is computed in several steps."""
        return CHUNK_TOKENS in self.arguments or CHUNK_OF_ONE in self.arguments

    @property
    def most_requests(self) -> int | None:
        """How many requests run at a time, where the flags say so."""
        words = list(self.arguments)
        return int(words[words.index(MOST_REQUESTS) + 1]) if MOST_REQUESTS in words else None
