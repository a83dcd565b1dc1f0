"""The words in which cells and requirements meet: a cell says what it is, a requirement where it can be exercised."""

from __future__ import annotations

import enum
from collections.abc import Collection


class CellTrait(enum.StrEnum):
    """What a cell can be, as far as any engine can be it. The value describes the cell.

    A trait for which the suite of one feature looks is a text there and in the cells, and needs no member here. A test
    requires of every trait that a cell has it and that a requirement looks for it, so that none is misspelt.
    """

    PLAIN = "a large pool, and all else as most users have it"
    HITS = "whole blocks of a cached prefix must hit"
    CONVERSATIONS = "conversations stay cached between their turns"
    BATCHES = "batches are computed in a way of their own"
    RESPONSE_OPTIONS = "prompt logprobs, several answers, stop strings"
    KV_LAYOUT = "blocks of another size, or keys and values in another format"
    BLOCK_KEYS = "block keys include adapters and salts"
    ADAPTERS = "adapters are loaded, replaced and unloaded"
    ADAPTER_CHOICE = "adapters are chosen per request"
    RESETS = "the cache is reset, also while requests run"
    ABORTS = "requests wait and run long enough to be aborted"
    WAITING = "requests wait for others, or for the end of a step"
    NARROW_CHUNKS = "prefill in chunks smaller than a block"
    INTERLEAVED = "prefixes are looked up between the chunks of other prompts"
    STEP_COUNTS = "the number of steps gives the number of cached tokens"
    SMALL_POOL = "a pool smaller than the working set"
    EVICTION = "a pool that evicts, with a schedule of its own"
    PREEMPTION = "a pool that running requests fill"
    MIXTURES = "requests of all kinds at once, in a small pool"
    WHOLE_PROMPTS = "a small pool, and each prompt in one step"
    GROUPS_SMALL_POOL = "a small pool that several groups share"
    SECOND_TIER = "a second KV tier behind a small pool"


def meet(traits: Collection[str] | None, suits: Collection[str]) -> bool:
    """Return whether something with these traits suits a requirement. `traits`: None for what suits all of them."""
    return traits is None or any(trait in suits for trait in traits)
