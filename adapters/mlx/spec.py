"""mlx-lm: its server, with the generated models as they are, and adapters in its own format."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.mlx import engine, setup
from coldproof.adapters.mlx.reproducer import MLX
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec, RepairSupport
from coldproof.adapters.spec.planted_repairs import planted
from coldproof.adapters.spec.release_package import ReleasePackage

SPARSE = (CellTrait.BATCHES, CellTrait.ADAPTERS, CellTrait.CONVERSATIONS)  # no minimum hit is guaranteed
USUAL = (*SPARSE, CellTrait.HITS, CellTrait.ABORTS, CellTrait.MIXTURES, CellTrait.SMALL_POOL)


def cell(
    name: str, about: str, *flags: str, traits: tuple[str, ...] = USUAL, model: ModelLayers = ModelLayers.FULL
) -> Cell:
    """Return a cell with these flags. Each cell has its own cold engine."""
    return Cell(name=name, about=about, arguments=flags, traits=traits, alike=False, engine="mlx", model=model)


CELLS = (
    cell("mlx", "requests in batches, ten kept sequences"),
    cell("mlx-few", "two kept sequences: the others are evicted", setup.KEPT, "2"),
    cell("mlx-chunks", "prefill in chunks of 32 tokens, of one prompt at a time", *setup.CHUNKS),
    cell(
        "mlx-window",
        "a Gemma 3 model with a sliding window of 64 tokens, whose sequences cannot be cut",
        traits=SPARSE,
        model=ModelLayers.WINDOW,
    ),
    cell(
        "mlx-unnamed",
        "requests for an adapter do not name the model, which is the one with which the server was started",
        setup.UNNAMED,
        traits=(CellTrait.ADAPTER_CHOICE,),
    ),
    cell("mlx-drafts", "drafts of the model itself: requests are served one by one", setup.DRAFTS, setup.ITSELF),
)

ENGINE = EngineSpec(
    name="mlx",
    about="mlx-lm's server",
    cells=CELLS,
    start=engine.start,
    package="mlx_lm",
    releases=ReleasePackage(name="mlx-lm"),
    reproduction=MLX,
    repairs=RepairSupport(findings="mlx", planted=planted),
    known_issues=Path(__file__).with_name("known_issues.toml"),
    profiles={"smoke": {MODEL: ("mlx", "mlx-few", "mlx-window", "mlx-unnamed", "mlx-drafts")}},
)
