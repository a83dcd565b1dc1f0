"""OpenVINO GenAI (package openvino-genai): continuous batching, stepped by its caller."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from adapters import openvino
from adapters.base import Engine
from adapters.openvino_setup import PACKAGE, REGISTERED, OpenVinoOptions
from harness.cell import Cell
from harness.engines.kind import Kind, Setting
from harness.variant import CHUNKS, POOL, Variant

BLOCKS, BUDGET, SPLIT = "num_kv_blocks", "max_num_batched_tokens", "dynamic_split_fuse"
ROOMY, TIGHT = f"{BLOCKS}=128", f"{BLOCKS}=24"
TOKEN_STEPS, ODD_STEPS, WHOLE = f"{BUDGET}=1", f"{BUDGET}=48", (f"{SPLIT}=false", f"{BUDGET}=4096")
ANSWERS = ("GROUND", "CHAT", "SURFACE")
UNDER_PRESSURE = ("PRESS", "PREEMPT", "CTRL-2", "MIXED")


def cell(name: str, about: str, areas: tuple[str, ...], *words: str) -> Cell:
    """A pipeline with these fields of its SchedulerConfig. Cold answers come from one of each cell's own kind."""
    return Cell(name=name, about=about, arguments=words, areas=areas, alike=False, engine="openvino")


CELLS = (
    cell(
        "openvino",
        "a pool of 128 blocks, prompts in chunks of 48 tokens, one and a half blocks",
        (*ANSWERS, "CTRL-2"),
        ROOMY,
        ODD_STEPS,
    ),
    cell(
        "openvino-counted",
        "the same with one token a step: the number of steps says exactly what was hit",
        (*ANSWERS, "REUSE-1", "REUSE-2", "CTRL-2"),
        ROOMY,
        TOKEN_STEPS,
    ),
    cell(
        "openvino-growing", "the engine's own defaults: a pool that grows, chunks of 256 tokens", ("GROUND", "CHAT-1")
    ),
    cell("openvino-tight", "a pool of 24 blocks, chunks of 48 tokens", UNDER_PRESSURE, TIGHT, ODD_STEPS),
    cell("openvino-tight-counted", "a pool of 24 blocks, one token a step", ("PRESS-1", "CTRL-2"), TIGHT, TOKEN_STEPS),
    cell(
        "openvino-whole-prompts",
        "a pool of 24 blocks, each prompt in one piece before anybody decodes (dynamic_split_fuse off)",
        ("GROUND", "PRESS-2", "PRESS-4", "PREEMPT-1"),
        TIGHT,
        *WHOLE,
    ),
    cell(
        "openvino-adapters",
        "adapters registered; each generate() runs requests of one of them",
        ("GROUND", "LORA-4"),
        ROOMY,
        REGISTERED,
    ),
)


def start(setting: Setting) -> Engine:
    """A pipeline, with every adapter registered where the cell is about adapters."""
    options = OpenVinoOptions(
        model=setting.model,
        prefix_caching=setting.caching,
        adapters=setting.adapters if REGISTERED in setting.arguments else (),
        arguments=setting.arguments,
        log=setting.log,
    )
    return openvino.spawn(options, on_process=setting.on_process)


def variants(cell: Cell, arguments: tuple[str, ...]) -> Iterator[Variant]:
    """More room, and prompts in one piece."""
    given = (*cell.arguments, *arguments)

    def variant(name: str, removes: str, *words: str) -> Variant:
        return Variant(
            name=name, removes=removes, cell=msgspec.structs.replace(cell, arguments=(*cell.arguments, *words))
        )

    if TIGHT in given:
        yield variant("a pool of 2048 blocks", POOL, f"{BLOCKS}=2048")
    if ODD_STEPS in given or TOKEN_STEPS in given:
        yield variant("prefill in one piece", CHUNKS, f"{BUDGET}=4096")


OPENVINO = Kind(
    name="openvino",
    about="OpenVINO GenAI's continuous batching",
    cells=CELLS,
    start=start,
    package=PACKAGE,
    variants=variants,
)
