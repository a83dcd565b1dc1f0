"""llama.cpp: its server as a library (package xllamacpp), with a model and adapters in its own format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from coldproof.adapters.llamacpp import engine, setup
from coldproof.adapters.llamacpp.reproducer import LLAMACPP
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import TIER, Cell, EngineVariant, ModelLayers
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec
from coldproof.adapters.spec.release_package import ReleasePackage

SPARSE = (CellTrait.BATCHES, CellTrait.ADAPTERS, CellTrait.CONVERSATIONS)  # no minimum hit is guaranteed
ONE_AT_A_TIME = (*SPARSE, CellTrait.HITS, CellTrait.SMALL_POOL, CellTrait.MIXTURES)  # no request is queued long
SIDE_BY_SIDE = (*ONE_AT_A_TIME, CellTrait.RESETS, CellTrait.ABORTS)
HOST_CACHE = "--cache-ram"
NO_HOST_CACHE, ONE_SLOT = (HOST_CACHE, "0"), (setup.SLOTS, "1")
SLOT_ALONE = (*ONE_SLOT, *NO_HOST_CACHE)
SAVED = (setup.SAVED, "slots", *NO_HOST_CACHE)
# What a mode that changes the KV or its use is tested for.
ONE_MODE = (CellTrait.ADAPTER_CHOICE, CellTrait.CONVERSATIONS, CellTrait.HITS, CellTrait.SMALL_POOL)
KV_IN_BLOCKS = (CellTrait.BATCHES, *ONE_MODE)
IMAGES = ("images",)
SEEING = (setup.TOWER, "projector.gguf")  # a file that is written beside the model
RESTORED = ("saved states", "persistent tier")
PIECE = 16  # tokens: fewer than in a segment, more than two answers share by chance
SHIFTED = (
    f"KV of {PIECE} or more consecutive tokens is reused at any position of a prompt, with shifted positions and after "
    "any prefix (llama.cpp PR#9866)"
)


def quantised(kind: str) -> tuple[str, ...]:
    """Return the flags for KV that is stored in blocks of 32 numbers. Only flash attention reads such values."""
    return (*NO_HOST_CACHE, "--cache-type-k", kind, "--cache-type-v", kind, "--flash-attn", "on")


def cell(name: str, about: str, *flags: str, traits: tuple[str, ...] = SIDE_BY_SIDE, **more: Any) -> Cell:
    """Return a cell with these flags. Each cell has its own cold engine."""
    return Cell(name=name, about=about, arguments=flags, traits=traits, alike=False, engine="llamacpp", **more)


CELLS = (
    cell("llamacpp", "four slots of 2,048 tokens, without the host's prompt cache", *NO_HOST_CACHE),
    cell("llamacpp-one-slot", "one slot, without the host's prompt cache", *SLOT_ALONE, traits=ONE_AT_A_TIME),
    cell(
        "llamacpp-host-cache", "one slot, and the host's prompt cache for evicted KV", *ONE_SLOT, traits=ONE_AT_A_TIME
    ),
    cell(
        "llamacpp-window",
        "one slot of a Gemma 3 model with a sliding window of 64 tokens and checkpoints of it",
        *SLOT_ALONE,
        traits=SPARSE,
        model=ModelLayers.WINDOW,
    ),
    cell(
        "llamacpp-unified",
        "four slots that share one KV buffer",
        setup.UNIFIED,
        *NO_HOST_CACHE,
        traits=(*SIDE_BY_SIDE, "another implementation"),
        twin="llamacpp",
    ),
    cell(
        "llamacpp-window-unified",
        "llamacpp-window with four slots that share one KV buffer",
        setup.UNIFIED,
        *NO_HOST_CACHE,
        traits=(CellTrait.CONVERSATIONS,),
        model=ModelLayers.WINDOW,
    ),
    cell(
        "llamacpp-window-whole",
        "llamacpp-window with the whole context in the window's buffer: the prefix of any prompt is reused",
        *SLOT_ALONE,
        setup.WHOLE_WINDOW,
        traits=ONE_AT_A_TIME,
        model=ModelLayers.WINDOW,
    ),
    cell("llamacpp-saved", "one slot that is saved to files and restored", *ONE_SLOT, *SAVED, traits=RESTORED),
    cell("llamacpp-saved-slots", "the same with two slots", setup.SLOTS, "2", *SAVED, traits=RESTORED),
    cell("llamacpp-images", "prompts with images, four slots", *NO_HOST_CACHE, *SEEING, traits=IMAGES),
    cell(
        "llamacpp-images-host-cache",
        "prompts with images, one slot, and the host's prompt cache for evicted KV",
        *ONE_SLOT,
        *SEEING,
        traits=IMAGES,
    ),
    cell(
        "llamacpp-cache-reuse",
        f"one slot with non-prefix KV reuse of {PIECE} or more tokens: answers may change by design",
        *SLOT_ALONE,
        setup.REUSE,
        str(PIECE),
        traits=(*ONE_MODE, CellTrait.MIXTURES),
        lossy=SHIFTED,
    ),
    cell("llamacpp-kv-q8", "four slots with KV in 8 bits", *quantised("q8_0"), traits=KV_IN_BLOCKS, on_request=True),
    cell("llamacpp-kv-q4", "four slots with KV in 4 bits", *quantised("q4_0"), traits=KV_IN_BLOCKS, on_request=True),
    cell(
        "llamacpp-weights-q4",
        "four slots with weights in 4 bits: a trained model's as published, else the generated model's (Q4_0)",
        *NO_HOST_CACHE,
        setup.FOUR_BITS,
        traits=KV_IN_BLOCKS,
        on_request=True,
    ),
    cell(
        "llamacpp-context-shift",
        "one slot of 256 tokens with context shift: when an answer outgrows the context, the oldest half is evicted",
        *SLOT_ALONE,
        setup.SHIFT,
        setup.CONTEXT,
        "256",
        traits=ONE_MODE,
    ),
)


def variants(cell: Cell, _shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[EngineVariant]:
    """Yield a variant without the host's prompt cache, if the cell has it."""
    if HOST_CACHE not in (*cell.arguments, *arguments):
        changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, *NO_HOST_CACHE))
        yield EngineVariant(name="no host prompt cache", removes=TIER, cell=changed)


ENGINE = EngineSpec(
    name="llamacpp",
    about="llama.cpp's server",
    cells=CELLS,
    start=engine.start,
    package="xllamacpp",
    releases=ReleasePackage(name="xllamacpp"),
    variants=variants,
    changes=(EngineChange.WEIGHTS, EngineChange.KV_FORMAT, EngineChange.ROPE),
    reproduction=LLAMACPP,
    # What most servers run: slots, slots that share a buffer, and the host's prompt cache, which is on by default.
    profiles={"smoke": {MODEL: ("llamacpp", "llamacpp-host-cache", "llamacpp-unified")}},
)
