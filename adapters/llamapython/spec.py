"""llama-cpp-python: its server, with a model and adapters as GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coldproof.adapters.llamapython import engine, setup
from coldproof.adapters.llamapython.reproducer import LLAMAPYTHON
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec, RepairSupport
from coldproof.adapters.spec.planted_repairs import planted
from coldproof.adapters.spec.release_package import ReleasePackage

KEPT = (CellTrait.BATCHES, CellTrait.ADAPTERS, CellTrait.CONVERSATIONS, CellTrait.HITS, CellTrait.ABORTS)
ONE_SEQUENCE = (*KEPT, CellTrait.SMALL_POOL, CellTrait.MIXTURES)
RAM_CACHE = (setup.KEEPS, "true")
DISK_CACHE = (*RAM_CACHE, setup.KIND, setup.DISK)
DRAFTS = ("--draft_model", "prompt-lookup-decoding", "--draft_model_num_pred_tokens", "4")


def cell(name: str, about: str, *flags: str, traits: tuple[str, ...] = KEPT, **more: Any) -> Cell:
    """Return a cell with these flags. Each cell has its own cold engine."""
    return Cell(name=name, about=about, arguments=flags, traits=traits, alike=False, engine="llamapython", **more)


CELLS = (
    cell("llamapython", "the sequence of the last request is kept", traits=ONE_SEQUENCE),
    cell("llamapython-ram", "states of earlier requests are kept in memory (LlamaRAMCache)", *RAM_CACHE),
    cell(
        "llamapython-disk",
        "states of earlier requests are kept in files (LlamaDiskCache)",
        *DISK_CACHE,
        traits=(*KEPT, "persistent tier"),
    ),
    cell("llamapython-drafts", "drafts from the prompt itself (prompt-lookup-decoding)", *RAM_CACHE, *DRAFTS),
    cell("llamapython-batches", "a prompt is computed in batches of 32 tokens", *RAM_CACHE, "--n_batch", "32"),
    cell(
        "llamapython-window",
        "a Gemma 3 model with a sliding window of 64 tokens, whose buffer has the whole context",
        *RAM_CACHE,
        model=ModelLayers.WINDOW,
    ),
    cell(
        "llamapython-window-cut",
        "a buffer of little more than the window (swa_full=False, which Python callers can set)",
        *("--swa_full", "false", "--n_batch", "32", "--n_ubatch", "32"),
        traits=(CellTrait.CONVERSATIONS, CellTrait.SMALL_POOL, CellTrait.MIXTURES),
        model=ModelLayers.WINDOW,
    ),
)

ENGINE = EngineSpec(
    name="llamapython",
    about="llama-cpp-python's server",
    title="llama-cpp-python",
    cells=CELLS,
    start=engine.start,
    package="llama-cpp-python starlette-context uvicorn",  # the others of its extra "server" come with these
    changes=(EngineChange.WEIGHTS, EngineChange.KV_FORMAT, EngineChange.ROPE),
    reproduction=LLAMAPYTHON,
    repairs=RepairSupport(findings="llamapython", planted=planted),
    known_issues=Path(__file__).with_name("known_issues.toml"),
    releases=ReleasePackage(name="llama-cpp-python"),
    profiles={"smoke": {MODEL: ("llamapython", "llamapython-ram", "llamapython-disk", "llamapython-drafts")}},
)
