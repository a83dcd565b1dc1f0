"""Transformers' continuous batching, in this process, stepped by hand (packages torch, transformers, peft)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from adapters import transformers, transformers_setup
from adapters.base import Engine
from harness.cell import Cell
from harness.engines.kind import Kind, Setting
from harness.variant import CHUNKS, POOL, TIER, Variant

KEYS = ("GROUND", "LORA", "CHAT", "REUSE", "CTRL-1", "SURFACE")  # the room is not what matters
ROOM = ("REUSE", "PRESS", "PREEMPT", "CTRL", "MIXED")  # the pool has to be small
ROOMY, PREFILL_FIRST = "num_blocks=2048", "scheduler_type=prefill_first"
SMALL = ("num_blocks=24", "max_batch_tokens=64", "max_requests_per_batch=8")


def cell(name: str, about: str, areas: tuple[str, ...], *fields: str) -> Cell:
    """An engine with these fields of its ContinuousBatchingConfig. Cold answers come from its own kind."""
    return Cell(name=name, about=about, arguments=fields, areas=areas, alike=False, engine="transformers")


CELLS = (
    cell("transformers", "a roomy pool: 256 blocks of 16 tokens, 256 tokens a step", KEYS),
    cell("transformers-tight", "24 blocks of 16 tokens, 64 tokens and 8 requests a step", ROOM, *SMALL),
    cell("transformers-prefill-first", "the same with prefill before decode", ROOM, *SMALL, PREFILL_FIRST),
)


def start(setting: Setting) -> Engine:
    """An engine in this process; its adapters are loaded when they are asked for."""
    return transformers.start(
        transformers_setup.TransformersOptions(
            model=setting.model, prefix_caching=setting.caching, arguments=setting.arguments, log=setting.log
        )
    )


def variants(cell: Cell, arguments: tuple[str, ...]) -> Iterator[Variant]:
    """A roomy pool, whole prompts at once, no swap space: each where the cell has the other."""
    given = {field.partition("=")[0] for field in (*cell.arguments, *arguments)}
    for field, name, removes, instead in (
        ("num_blocks", "a pool of 2048 blocks", POOL, ROOMY),
        ("max_batch_tokens", "prefill in one piece", CHUNKS, "max_batch_tokens=4096"),
        ("cpu_offload_space", "no swap space", TIER, "cpu_offload_space=0.0"),
    ):
        if field in given:
            changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, instead))
            yield Variant(name=name, removes=removes, cell=changed)


TRANSFORMERS = Kind(
    name="transformers",
    about="Transformers' continuous batching",
    cells=CELLS,
    start=start,
    package="transformers",
    variants=variants,
)
