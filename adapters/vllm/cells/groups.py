"""Cells with several groups of KV-cache blocks: windows, states, and layouts of the fingerprint worker."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.spec.cell import ModelLayers
from coldproof.adapters.vllm.cells.cell import (
    CHUNK_TOKENS,
    COUNTED,
    EAGLE,
    IN_PRESSED_POOL,
    MOST_REQUESTS,
    MTP,
    USUAL,
    VllmCell,
    window_pool,
)


def layout_cell(
    name: str, about: str, topology: str, *arguments: str, traits: tuple[str, ...] = ("groups", *USUAL)
) -> VllmCell:
    """Return a cell with a topology that only the fingerprint worker has: see adapters/vllm/fingerprint/topology.py."""
    return VllmCell(
        name=name, about=about, topology=topology, arguments=arguments, traits=traits, only_fingerprint=True
    )


LONG_CONTEXT = ("--max-model-len", "374000", "--hf-overrides", '{"max_position_embeddings":374000}')
TIGHT_LONG = 3300  # blocks: a prompt of 374,000 tokens, what its windows hold in a step of 4,096 tokens, and 150 more


def long_cells(retention: str, *, fitting: int, roomy: int) -> tuple[VllmCell, ...]:
    """Return cells of groups-five-long with this retention interval, and chunks as in the report.

    Three conversations of this length share a prelude of two thirds. `roomy`: blocks for all that they compute.
    `fitting`: about one and a half times those that they leave, with one request's windows. The third pool has room for
    one request.
    """
    kept = {"0": "kept for replays and junctions only", "none": "kept densely"}.get(
        retention, f"kept every {retention}"
    )
    pools = {"roomy": roomy, "fitting": fitting, "tight": TIGHT_LONG}
    flags = ("--prefix-cache-retention-interval", retention.capitalize(), CHUNK_TOKENS, "4096")
    return tuple(
        msgspec.structs.replace(
            layout_cell(
                f"groups-five-{retention}-{size}",
                f"groups-five-long with window blocks {kept}, a {size} pool",
                "five-groups",
                *(*LONG_CONTEXT, *flags, "--num-gpu-blocks-override", str(blocks)),
                traits=("groups with long prompts",),
            ),
            on_request=True,
        )
        for size, blocks in pools.items()
    )


STATE_BLOCK = 64  # of the generated model with states: vLLM makes a block as large as a state


def state_cell(
    name: str, about: str, *arguments: str, traits: tuple[str, ...] = ("groups", CellTrait.KV_LAYOUT)
) -> VllmCell:
    """Return a cell with a model of Granite 4's shape, states beside attention. The fingerprint worker has
    `groups-state` for it.
    """
    return VllmCell(
        name=name,
        about=about,
        arguments=arguments,
        traits=traits,
        alike=False,
        model=ModelLayers.STATE,
        numeric=True,
    )


WINDOW_CELLS = (
    VllmCell(
        name="sliding-window",
        about="a Gemma 3 model with a window of 64 tokens: six groups of KV-cache blocks",
        traits=("groups", CellTrait.KV_LAYOUT),
        alike=False,
        model=ModelLayers.WINDOW,
        topology="window",
    ),
    VllmCell(
        name="sliding-window-retained",
        about="the Gemma 3 model; window blocks are retained every 64 tokens (prefix_cache_retention_interval)",
        arguments=("--prefix-cache-retention-interval", "64"),
        traits=COUNTED,
        alike=False,
        model=ModelLayers.WINDOW,
        topology="window",
    ),
    VllmCell(
        name="sliding-window-tight",
        about="the Gemma 3 model with a pool that two long requests fill, chunks of 64 tokens",
        arguments=("--max-model-len", "512", "--num-gpu-blocks-override", "90", "--max-num-batched-tokens", "64"),
        traits=(CellTrait.GROUPS_SMALL_POOL, CellTrait.RESETS, CellTrait.ABORTS),
        alike=False,
        model=ModelLayers.WINDOW,
        topology="window",
    ),
)

STATE_CELLS = (
    state_cell(
        "states", "a Granite 4 model: states beside attention, chunks of one block", CHUNK_TOKENS, str(STATE_BLOCK)
    ),
    state_cell(
        "states-half-chunks",
        "the Granite 4 model; chunks of half a block",
        *(CHUNK_TOKENS, str(STATE_BLOCK // 2)),
        traits=("groups",),
    ),
    state_cell(
        "states-tight",
        "the Granite 4 model with a pool that two long requests fill",
        *("--max-model-len", "512", "--num-gpu-blocks-override", "24", CHUNK_TOKENS, str(STATE_BLOCK)),
        traits=IN_PRESSED_POOL,
    ),
    state_cell("states-whole-chunks", "the Granite 4 model; chunks of several blocks", traits=("groups",)),
)


def head_cell(drafter: str, about: str) -> VllmCell:
    """Return the cell groups-window with a head that drafts."""
    cell = layout_cell(
        f"groups-window-{drafter}",
        about,
        "window",
        *("--max-model-len", "512"),
        traits=("groups", "drafts", CellTrait.CONVERSATIONS),
    )
    return msgspec.structs.replace(cell, draft_tokens=3, drafter=drafter)


GROUP_CELLS = (
    layout_cell(
        "groups-window", "a sliding window of 64 tokens beside full attention, a pool that never evicts", "window"
    ),
    layout_cell(
        "groups-window-fitting",
        "groups-window with a pool for what three long conversations leave, and not for each block of their windows",
        "window",
        *("--num-gpu-blocks-override", "240", CHUNK_TOKENS, "64", MOST_REQUESTS, "16"),
        traits=("groups with long prompts",),
    ),
    layout_cell(
        "groups-window-tight",
        "groups-window with a pool that two long requests fill, chunks of 64 tokens",
        "window",
        *window_pool(60),
        traits=IN_PRESSED_POOL,
    ),
    head_cell(
        EAGLE,
        "groups-window with an EAGLE head: a hit needs a block of the window more, which vLLM leaves out of it",
    ),
    head_cell(MTP, "groups-window with a head for multi-token prediction (MTP): hits leave out a block of its group"),
    layout_cell("groups-two-windows", "windows of 64 and of 128 tokens beside full attention", "two-windows"),
    layout_cell(
        "groups-five",
        "five groups with blocks of 256, 64, 64, 4 and 8 tokens, windows of 128 (DeepSeek-V4-Flash's layout)",
        "five-groups",
    ),
    layout_cell(
        "groups-five-long",
        "groups-five with prompts of up to 374,000 tokens, the length in a report similar to vllm#32802",
        "five-groups",
        *LONG_CONTEXT,
        traits=("groups with unequal blocks", "groups with long prompts"),
    ),
    *long_cells("0", fitting=6400, roomy=25_000),
    *long_cells("16384", fitting=7600, roomy=26_000),
    *long_cells("none", fitting=86_000, roomy=130_000),
    layout_cell(
        "groups-state-blocks",
        "states, a window with blocks of 8 and full attention with blocks of 64: hits can end inside a block",
        "state-blocks",
        traits=("groups with unequal blocks",),
    ),
    layout_cell(
        "groups-state",
        "layers with a state (Mamba, linear attention), stored at block ends, beside full attention",
        "state",
    ),
)
