"""llama.cpp: its server as a library (package xllamacpp), with a model and adapters in its own format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from adapters import llamacpp, llamacpp_setup
from adapters.base import Engine
from harness.cell import Cell
from harness.engines.kind import Kind, Setting
from harness.variant import TIER, Variant

AREAS = ("GROUND", "LORA", "CHAT", "REUSE", "PRESS", "CTRL", "MIXED")
ONE_AT_A_TIME = ("GROUND", "LORA", "CHAT", "REUSE", "PRESS", "MIXED")  # nobody is in a queue for long enough to hang up
SPARSE = ("GROUND", "LORA", "CHAT", "MIXED")  # nothing is owed for sure
HOST_CACHE = "--cache-ram"
NO_HOST_CACHE, ONE_SLOT = (HOST_CACHE, "0"), (llamacpp_setup.SLOTS, "1")
SAVED = (llamacpp_setup.SAVED, "slots", *NO_HOST_CACHE)
RESTORED = ("TIER-1", "TIER-3")  # what is saved is a second tier
PIECE = 16  # tokens; fewer than a segment has, more than two answers share by chance
SHIFTED = (
    f"pieces of {PIECE} tokens and more are reused wherever they stand in a prompt, their positions shifted, whatever "
    "came before them (llama.cpp PR#9866)"
)


def cell(name: str, about: str, *flags: str, areas: tuple[str, ...] = AREAS, **more: Any) -> Cell:
    """A server with these flags. Cold answers come from an engine of each cell's own kind."""
    return Cell(
        name=name,
        about=about,
        arguments=flags,
        areas=areas,
        alike=False,
        engine="llamacpp",
        **more,
    )


CELLS = (
    cell("llamacpp", "four slots of 2,048 tokens, without the host's prompt cache", *NO_HOST_CACHE),
    cell(
        "llamacpp-one-slot", "one slot, without the host's prompt cache", *ONE_SLOT, *NO_HOST_CACHE, areas=ONE_AT_A_TIME
    ),
    cell(
        "llamacpp-host-cache", "one slot, and the host's prompt cache for what it loses", *ONE_SLOT, areas=ONE_AT_A_TIME
    ),
    cell(
        "llamacpp-window",
        "one slot of a Gemma 3 with a window of 64 tokens, of which checkpoints are kept",
        *ONE_SLOT,
        *NO_HOST_CACHE,
        areas=SPARSE,
        sliding_window=True,
    ),
    cell("llamacpp-unified", "four slots that share one KV buffer", llamacpp_setup.UNIFIED, *NO_HOST_CACHE),
    cell("llamacpp-saved", "one slot that is saved to files and restored", *ONE_SLOT, *SAVED, areas=RESTORED),
    cell("llamacpp-saved-slots", "the same with two slots", llamacpp_setup.SLOTS, "2", *SAVED, areas=RESTORED),
    cell(
        "llamacpp-cache-reuse",
        f"one slot that reuses pieces of {PIECE} tokens at other places: answers may change by design",
        *ONE_SLOT,
        *NO_HOST_CACHE,
        llamacpp_setup.REUSE,
        str(PIECE),
        areas=("LORA-4", "CHAT", "REUSE", "PRESS", "MIXED"),
        lossy=SHIFTED,
    ),
    cell(
        "llamacpp-context-shift",
        "one slot of 256 tokens in which answers may outgrow the context, whose oldest half then goes",
        *ONE_SLOT,
        *NO_HOST_CACHE,
        llamacpp_setup.SHIFT,
        llamacpp_setup.CONTEXT,
        "256",
        areas=("LORA-4", "CHAT", "REUSE", "PRESS"),
    ),
)


def start(setting: Setting) -> Engine:
    """A server with every adapter registered."""
    options = llamacpp_setup.LlamaCppOptions(
        model=setting.model,
        prefix_caching=setting.caching,
        adapters=setting.adapters,
        arguments=setting.arguments,
        log=setting.log,
    )
    return llamacpp.spawn(options, on_process=setting.on_process)


def variants(cell: Cell, arguments: tuple[str, ...]) -> Iterator[Variant]:
    """Without the host's cache, where it is on."""
    if HOST_CACHE not in (*cell.arguments, *arguments):
        changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, *NO_HOST_CACHE))
        yield Variant(name="no host prompt cache", removes=TIER, cell=changed)


LLAMACPP = Kind(
    name="llamacpp",
    about="llama.cpp's server",
    cells=CELLS,
    start=start,
    package="xllamacpp",
    variants=variants,
)
