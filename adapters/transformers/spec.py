"""Engine specification of Transformers' continuous batching in this process (packages torch, transformers, peft)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.protocol.weights import WeightPolicy
from coldproof.adapters.spec.cell import CHUNKS, POOL, TIER, Cell, EngineVariant, ModelLayers
from coldproof.adapters.spec.engine_spec import EngineSpec, FaultCatalogue, RepairSupport
from coldproof.adapters.spec.layer import MODEL_LAYER
from coldproof.adapters.spec.release_package import ReleasePackage
from coldproof.adapters.spec.repair import plant
from coldproof.adapters.spec.weight_promise import WeightPromise
from coldproof.adapters.transformers import engine
from coldproof.adapters.transformers.reproducer import TRANSFORMERS
from coldproof.adapters.transformers.setup import preload

LARGE = (CellTrait.PLAIN, CellTrait.ADAPTERS, "weight updates")
PRESSED = (CellTrait.SMALL_POOL, CellTrait.PREEMPTION, CellTrait.MIXTURES, CellTrait.RESETS, CellTrait.ABORTS)
TIGHT = (*PRESSED, CellTrait.HITS)
ROOMY, PREFILL_FIRST = "num_blocks=2048", "scheduler_type=prefill_first"
SMALL = ("num_blocks=24", "max_batch_tokens=64", "max_requests_per_batch=8")


def cell(name: str, about: str, traits: tuple[str, ...], *fields: str, model: ModelLayers = ModelLayers.FULL) -> Cell:
    """Return a cell: `fields` are those of ContinuousBatchingConfig. Cold answers come from the same configuration."""
    return Cell(
        name=name,
        about=about,
        arguments=fields,
        traits=traits,
        alike=False,
        engine="transformers",
        model=model,
    )


CELLS = (
    cell("transformers", "a large pool: 256 blocks of 16 tokens, 256 tokens per step", LARGE),
    cell("transformers-tight", "24 blocks of 16 tokens, 64 tokens and 8 requests per step", TIGHT, *SMALL),
    cell("transformers-prefill-first", "transformers-tight with prefill before decode", TIGHT, *SMALL, PREFILL_FIRST),
    cell(
        "transformers-window",
        "a Gemma 3 model with a sliding window of 64 tokens, 24 tokens per step",
        (CellTrait.BATCHES,),  # with a window, requests share no blocks
        "max_batch_tokens=24",
        model=ModelLayers.WINDOW,
    ),
)


def variants(cell: Cell, _shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[EngineVariant]:
    """Yield the variants of a cell that differ from it: a large pool, prefill in one step, no swap space."""
    set_fields = {field.partition("=")[0] for field in (*cell.arguments, *arguments)}
    for field, name, removes, instead in (
        ("num_blocks", "a pool of 2048 blocks", POOL, ROOMY),
        ("max_batch_tokens", "prefill in one piece", CHUNKS, "max_batch_tokens=4096"),
        ("cpu_offload_space", "no swap space", TIER, "cpu_offload_space=0.0"),
    ):
        if field in set_fields:
            changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, instead))
            yield EngineVariant(name=name, removes=removes, cell=changed)


def faults() -> FaultCatalogue:
    """Return the catalogue of faults, which patch the cache in Coldproof's process."""
    from coldproof.adapters.transformers import faults as catalogue

    return FaultCatalogue(
        faults=catalogue.FAULTS,
        listing=catalogue.listing,
        injected=catalogue.injected,
        acted=catalogue.has_acted,
    )


@contextlib.contextmanager
def repaired(files: Sequence[Path], _folder: Path) -> Iterator[None]:
    """Plant repairs into Transformers, which runs in this process."""
    plant(files)
    yield


ENGINE = EngineSpec(
    name="transformers",
    about="Transformers' continuous batching",
    cells=CELLS,
    start=engine.start,
    preload=preload,
    faults=faults,
    repairs=RepairSupport(findings="transformers", planted=repaired),
    layer=MODEL_LAYER,
    past_issues=Path(__file__).with_name("past_issues.toml"),
    package="transformers peft",
    releases=ReleasePackage(name="transformers", dependencies=True),
    variants=variants,
    reproduction=TRANSFORMERS,
    weights=WeightPromise(
        policy=WeightPolicy.ON_RESET,
        caller="pause() keeps the cache, so reset it after new weights, while there are no requests",
        link="https://huggingface.co/docs/transformers/main_classes/continuous_batching",
    ),
)
