"""Engine specification of OpenVINO GenAI (package openvino-genai): continuous batching, stepped by Coldproof."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.adapters.openvino import engine
from coldproof.adapters.openvino.reproducer import OPENVINO
from coldproof.adapters.openvino.setup import IMAGES, INT8, PACKAGE, REGISTERED
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import CHUNKS, POOL, Cell, EngineVariant
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.layer import MODEL_LAYER
from coldproof.adapters.spec.release_package import ReleasePackage

BLOCKS, BUDGET, SPLIT = "num_kv_blocks", "max_num_batched_tokens", "dynamic_split_fuse"
ROOMY, TIGHT = f"{BLOCKS}=128", f"{BLOCKS}=24"
TOKEN_STEPS, ODD_STEPS, WHOLE = f"{BUDGET}=1", f"{BUDGET}=48", (f"{SPLIT}=false", f"{BUDGET}=4096")
U8, U4 = "KV_CACHE_PRECISION=u8", "KV_CACHE_PRECISION=u4"
# With weights in 8 bits the engine rounds activations to 8 bits, too, unless it is told not to. Equal requests then
# repeat exactly, but scores of decode and of prefill differ by up to 0.06 nats: the engine looks exact and is not.
FLOAT_ACTIVATIONS, ROUNDED_ACTIVATIONS = (f"DYNAMIC_QUANTIZATION_GROUP_SIZE={size}" for size in (0, 32))
ANSWERS = (CellTrait.BATCHES, CellTrait.CONVERSATIONS, CellTrait.RESPONSE_OPTIONS, CellTrait.ABORTS)
UNDER_PRESSURE = (CellTrait.SMALL_POOL, CellTrait.PREEMPTION, CellTrait.MIXTURES, CellTrait.ABORTS)


def cell(name: str, about: str, traits: tuple[str, ...], *words: str, on_request: bool = False) -> Cell:
    """Return a cell: `words` are fields of SchedulerConfig. Cold answers come from a pipeline with the same fields."""
    return Cell(
        name=name, about=about, arguments=words, traits=traits, alike=False, engine="openvino", on_request=on_request
    )


CELLS = (
    cell(
        "openvino",
        "a pool of 128 blocks, prompts in chunks of 48 tokens (one and a half blocks)",
        ANSWERS,
        ROOMY,
        ODD_STEPS,
    ),
    cell(
        "openvino-counted",
        "a pool of 128 blocks, one token per step: the number of steps gives the exact number of cached tokens",
        (*ANSWERS, CellTrait.STEP_COUNTS),
        ROOMY,
        TOKEN_STEPS,
    ),
    cell(
        "openvino-growing",
        "the engine's own defaults: a pool that grows, chunks of 256 tokens",
        (CellTrait.BATCHES, CellTrait.INTERLEAVED),
    ),
    cell("openvino-tight", "a pool of 24 blocks, chunks of 48 tokens", UNDER_PRESSURE, TIGHT, ODD_STEPS),
    cell(
        "openvino-tight-counted",
        "a pool of 24 blocks, one token per step",
        (CellTrait.EVICTION, CellTrait.ABORTS),
        TIGHT,
        TOKEN_STEPS,
    ),
    cell(
        "openvino-whole-prompts",
        "a pool of 24 blocks, each prompt in one step, prefill before decode (dynamic_split_fuse off)",
        (CellTrait.BATCHES, CellTrait.WHOLE_PROMPTS),
        TIGHT,
        *WHOLE,
    ),
    cell(
        "openvino-adapters",
        "registered adapters; each generate() runs requests of one adapter",
        (CellTrait.BATCHES, CellTrait.ADAPTER_CHOICE),
        ROOMY,
        REGISTERED,
    ),
    cell(
        "openvino-images",
        "a model that takes images, a pool of 128 blocks, one token per step",
        ("images",),
        ROOMY,
        TOKEN_STEPS,
        IMAGES,
    ),
    cell(
        "openvino-images-tight",
        "the same in a pool of 24 blocks",
        ("images in a small pool",),
        TIGHT,
        TOKEN_STEPS,
        IMAGES,
    ),
    cell("openvino-kv-u8", "KV in 8 bits, the engine's own default", ANSWERS, ROOMY, ODD_STEPS, U8, on_request=True),
    cell("openvino-kv-u4", "KV in 4 bits", ANSWERS, ROOMY, ODD_STEPS, U4, on_request=True),
    cell(
        "openvino-int8",
        "weights in 8 bits, activations in float32",
        ANSWERS,
        ROOMY,
        ODD_STEPS,
        INT8,
        FLOAT_ACTIVATIONS,
        on_request=True,
    ),
    cell(
        "openvino-int8-activations",
        "weights and activations in 8 bits, the engine's own default",
        ANSWERS,
        ROOMY,
        ODD_STEPS,
        INT8,
        ROUNDED_ACTIVATIONS,
        on_request=True,
    ),
)


def variants(cell: Cell, _shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[EngineVariant]:
    """Yield the variants of a cell that differ from it: a larger pool, and prefill in one step."""
    for words, name, removes, instead in (
        ({TIGHT}, "a pool of 2048 blocks", POOL, f"{BLOCKS}=2048"),
        ({ODD_STEPS, TOKEN_STEPS}, "prefill in one piece", CHUNKS, f"{BUDGET}=4096"),
    ):
        if words.intersection((*cell.arguments, *arguments)):
            changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, instead))
            yield EngineVariant(name=name, removes=removes, cell=changed)


ENGINE = EngineSpec(
    name="openvino",
    about="OpenVINO GenAI's continuous batching",
    cells=CELLS,
    start=engine.start,
    layer=MODEL_LAYER,
    package=PACKAGE,
    releases=ReleasePackage(name=PACKAGE, dependencies=True),
    variants=variants,
    reproduction=OPENVINO,
)
