"""llama.cpp: its server as a library (package xllamacpp), with a model and adapters in its own format."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from adapters import llamacpp
from adapters.base import Engine
from harness.cell import Cell
from harness.engines.kind import Kind, Setting
from harness.variant import TIER, Variant

AREAS = ("GROUND", "LORA", "CHAT", "REUSE", "PRESS", "CTRL", "MIXED")
ONE_AT_A_TIME = ("GROUND", "LORA", "CHAT", "REUSE", "PRESS", "MIXED")  # nobody is in a queue for long enough to hang up
SPARSE = ("GROUND", "LORA", "CHAT", "CTRL-2", "MIXED")  # nothing is owed for sure
HOST_CACHE = "--cache-ram"
NO_HOST_CACHE, ONE_SLOT = (HOST_CACHE, "0"), (llamacpp.SLOTS, "1")


def cell(name: str, about: str, *flags: str, areas: tuple[str, ...] = AREAS, sliding_window: bool = False) -> Cell:
    """A server with these flags. Cold answers come from an engine of each cell's own kind."""
    return Cell(
        name=name,
        about=about,
        arguments=flags,
        areas=areas,
        alike=False,
        sliding_window=sliding_window,
        engine="llamacpp",
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
    cell("llamacpp-unified", "four slots that share one KV buffer", "--kv-unified", *NO_HOST_CACHE),
)


def start(setting: Setting) -> Engine:
    """A server with every adapter registered."""
    options = llamacpp.LlamaCppOptions(
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
