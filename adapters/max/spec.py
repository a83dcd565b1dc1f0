"""MAX: Modular's server on a CPU, with the generated models as they are."""

from __future__ import annotations

from coldproof.adapters.max import engine, setup
from coldproof.adapters.max.reproducer import MAX
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.engine_spec import MODEL, EngineSpec
from coldproof.adapters.spec.release_package import ReleasePackage

USUAL = (CellTrait.BATCHES, CellTrait.CONVERSATIONS, CellTrait.HITS, CellTrait.RESETS, CellTrait.BLOCK_KEYS)
TIGHT = (*USUAL, CellTrait.SMALL_POOL, CellTrait.MIXTURES)
CHUNKS = (setup.STEP, "128")


def cell(name: str, about: str, *flags: str, traits: tuple[str, ...] = USUAL, twin: str = "") -> Cell:
    """Return a cell with these flags."""
    return Cell(name=name, about=about, arguments=flags, traits=traits, engine="max", twin=twin)


CELLS = (
    cell("max", "four requests at once, 64 pages of 128 tokens"),
    cell(
        "max-tight",
        "two requests at once, 16 pages of 128 tokens",
        *(setup.BATCH, "2", setup.LENGTH, "1024"),
        traits=TIGHT,
    ),
    cell("max-chunks", "prefill in chunks of 128 tokens", *CHUNKS),
    cell(
        "max-legacy",
        "the KV manager that was replaced (MODULAR_USE_LEGACY_KV_CACHE=1)",
        setup.LEGACY,
        traits=(*USUAL, "another implementation"),
        twin="max",
    ),
    cell("max-sha256", "blocks have SHA-256 hashes, in place of 64 bits", "--kv-cache-hash-algo", "sha256"),
    Cell(
        name="max-window",
        about="a Gemma 3 model with a sliding window of 64 tokens",
        traits=(CellTrait.BATCHES, CellTrait.CONVERSATIONS),
        alike=False,
        model=ModelLayers.WINDOW,
        engine="max",
    ),
)

ENGINE = EngineSpec(
    name="max",
    about="MAX, Modular's server",
    title="MAX",
    cells=CELLS,
    start=engine.start,
    package="max",
    reproduction=MAX,
    releases=ReleasePackage(name="max"),
    profiles={"smoke": {MODEL: ("max", "max-tight", "max-chunks")}},
)
