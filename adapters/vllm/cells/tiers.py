"""Cells with a second KV tier."""

from __future__ import annotations

import msgspec

from coldproof.adapters.vllm.cells.cell import NO_ADAPTERS, NOT_CHUNKED, SMALL_CHUNKS, VllmCell, small_pool, window_pool
from coldproof.adapters.vllm.kv_tiers import GIVEN

FAILING_TIER = ("TIER", "CTRL-3")
RELIABLE_TIER = ("TIER-1", "TIER-2", "TIER-3", "TIER-5", "CTRL-3")  # the areas of a tier whose loads do not fail
SESSION_TIER = (*RELIABLE_TIER, "SESS-1")


def tier_cell(
    name: str,
    about: str,
    *,
    arguments: tuple[str, ...] = SMALL_CHUNKS,
    tier: str | None = None,
    areas: tuple[str, ...] = RELIABLE_TIER,
) -> VllmCell:
    """Return a cell with a pool of 16 blocks and a second tier: `tier`, by default the one in the cell's name."""
    tier, pool = tier or name.removeprefix("tier-"), small_pool(*arguments)
    return VllmCell(name=name, about=about, arguments=pool, areas=areas, tier=tier, only_fingerprint=True)


def window_tier_cell(
    name: str, about: str, *, tier: str, blocks: int = 60, areas: tuple[str, ...] = RELIABLE_TIER
) -> VllmCell:
    """Return a cell with a second tier and several groups."""
    return VllmCell(
        name=name,
        about=f"{about}, and layers with a sliding window of 64 tokens beside full attention",
        arguments=window_pool(blocks),
        areas=areas,
        tier=tier,
        topology="window",
        only_fingerprint=True,
    )


def model_files_cell(name: str, tier: str, *arguments: str) -> VllmCell:
    """Return a cell with the files of a tier, in which a model keeps its keys and values when its engine ends."""
    about = f"the tier of tier-{tier} with a model: files with keys and values, which the next engine finds"
    pool = small_pool(*arguments)
    return VllmCell(name=name, about=about, arguments=pool, areas=("TIER-6",), tier=tier, numeric=True)


# Its start-up lines would be in the output of an engine in this process.
LMCACHE_ENVIRONMENT = (
    ("LMCACHE_DISABLE_BANNER", "1"),
    ("LMCACHE_LOG_LEVEL", "WARNING"),
    ("LMCACHE_TRACK_USAGE", "false"),
)


def lmcache_cell(
    name: str,
    about: str,
    *arguments: str,
    tier: str | None = None,
    blocks: int = 17,
    areas: tuple[str, ...] = RELIABLE_TIER,
) -> VllmCell:
    """Return a cell with LMCache's connector and a server of its own. `tier`: by default the one in the cell's name."""
    return VllmCell(
        name=name,
        about=f"LMCache's server beside the engine (LMCacheMPConnector), {about}",
        arguments=small_pool(*SMALL_CHUNKS, *arguments, blocks=blocks),
        areas=areas,
        tier=tier or name.removeprefix("tier-"),
        package="lmcache",
        environment=LMCACHE_ENVIRONMENT,
    )


LMCACHE_CELLS = (
    lmcache_cell("tier-lmcache", "chunks of a block"),
    lmcache_cell("tier-lmcache-chunks", "chunks of two blocks in shared memory, no adapters", NO_ADAPTERS),
    lmcache_cell(
        "tier-lmcache-files",
        "memory for about 50 chunks, then files in a folder; no adapters",
        NO_ADAPTERS,
        areas=(*RELIABLE_TIER, "TIER-6"),
    ),
    lmcache_cell(
        "tier-lmcache-seven",
        "chunks of a block, a pool of seven blocks with vLLM's own (LMCache#1969), no adapters",
        NO_ADAPTERS,
        tier="lmcache",
        blocks=7,
        areas=("TIER-2",),
    ),
    lmcache_cell(
        "tier-lmcache-failures",
        "tier-lmcache with a look at the server each second, no adapters",
        NO_ADAPTERS,
        tier="lmcache-watched",
        areas=("TIER-7",),
    ),
    lmcache_cell(
        "tier-lmcache-chunks-failures",
        "tier-lmcache-chunks with a look at the server each second",
        NO_ADAPTERS,
        tier="lmcache-chunks-watched",
        areas=("TIER-7",),
    ),
)

TIER_CELLS = (
    tier_cell("tier-offload", "vLLM's OffloadingConnector with a pool of 16 blocks", areas=SESSION_TIER),
    tier_cell("tier-offload-small", "tier-offload with a host tier of 20 chunks of two blocks each"),
    tier_cell(
        "tier-files",
        "vLLM's OffloadingConnector with host memory and then files in a folder (TieringOffloadingSpec, tier fs)",
        areas=(*RELIABLE_TIER, "TIER-6"),
    ),
    tier_cell(
        "tier-simple",
        "vLLM's SimpleCPUOffloadConnector, which stores blocks when they are computed",
        areas=SESSION_TIER,
    ),
    tier_cell("tier-simple-lazy", "vLLM's SimpleCPUOffloadConnector, which stores blocks shortly before eviction"),
    tier_cell("tier-multi", "vLLM's MultiConnector over OffloadingConnector and SimpleCPUOffloadConnector"),
    tier_cell(
        "tier-example",
        "vLLM's ExampleConnector (files in a folder), which needs each prompt in one step",
        arguments=(NOT_CHUNKED,),
        areas=(*RELIABLE_TIER, "TIER-6"),
    ),
    window_tier_cell(
        "tier-offload-window", "vLLM's OffloadingConnector", tier="offload", areas=("TIER-1", "TIER-2", "TIER-3")
    ),
    model_files_cell("tier-files-model", "files"),
    model_files_cell("tier-example-model", "example", NOT_CHUNKED),
    tier_cell("tier-example-chunks", "vLLM's ExampleConnector with chunked prefill", tier="example"),
    tier_cell(
        "tier-kept", "Coldproof's connector: blocks under vLLM's block hashes, synchronous loads", areas=SESSION_TIER
    ),
    tier_cell("tier-failing", "Coldproof's connector: two of three loads fail, vLLM recomputes", areas=FAILING_TIER),
    tier_cell("tier-failing-late", "tier-failing with asynchronous loads", areas=FAILING_TIER),
    window_tier_cell("tier-kept-window", "Coldproof's connector with asynchronous loads", tier="kept-late", blocks=32),
    window_tier_cell("tier-failing-window", "tier-failing-late", tier="failing-late", blocks=32, areas=FAILING_TIER),
    tier_cell("tier-failing-ends", "tier-failing; a failed load ends its request with an error", areas=FAILING_TIER),
    *LMCACHE_CELLS,
)
CONNECTOR = VllmCell(
    name="connector",
    about="the KV connector of --kv-transfer-config, with a pool of 16 blocks",
    arguments=small_pool(*SMALL_CHUNKS),
    areas=(*RELIABLE_TIER, "TIER-4", "TIER-6"),
    tier=GIVEN,
    only_fingerprint=True,
    on_request=True,
)
CONNECTOR_EVENTS = msgspec.structs.replace(
    CONNECTOR,
    name="connector-events",
    about="connector, and KV events are published, also by the connector",
    areas=("EVENT-1", "EVENT-2"),
    events=True,
)
