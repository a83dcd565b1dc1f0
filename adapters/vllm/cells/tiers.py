"""Cells with a second KV tier."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.vllm.cells.cell import (
    CHUNK_OF_ONE,
    NO_ADAPTERS,
    NOT_CHUNKED,
    SMALL_CHUNKS,
    VllmCell,
    small_pool,
    window_pool,
)
from coldproof.adapters.vllm.kv_tiers import GIVEN

RELIABLE_TIER = (CellTrait.SECOND_TIER,)
LIMITED_TIER = "second tier with limits for a request"
PERSISTENT_TIER = (*RELIABLE_TIER, "persistent tier")
SESSION_TIER = (*RELIABLE_TIER, "sessions")
FAILING_TIER = (*RELIABLE_TIER, "failing loads", "failing tier")  # Coldproof's connector keeps nothing in files


def tier_cell(
    name: str,
    about: str,
    *,
    arguments: tuple[str, ...] = SMALL_CHUNKS,
    tier: str | None = None,
    traits: tuple[str, ...] = RELIABLE_TIER,
    twin: str = "",
) -> VllmCell:
    """Return a cell with a pool of 16 blocks and a second tier: `tier`, by default the one in the cell's name."""
    tier, pool = tier or name.removeprefix("tier-"), small_pool(*arguments)
    return VllmCell(name=name, about=about, arguments=pool, traits=traits, tier=tier, twin=twin, only_fingerprint=True)


def window_tier_cell(
    name: str, about: str, *, tier: str, blocks: int = 60, traits: tuple[str, ...] = RELIABLE_TIER
) -> VllmCell:
    """Return a cell with a second tier and several groups."""
    return VllmCell(
        name=name,
        about=f"{about}, and layers with a sliding window of 64 tokens beside full attention",
        arguments=window_pool(blocks),
        traits=traits,
        tier=tier,
        topology="window",
        only_fingerprint=True,
    )


def model_files_cell(name: str, tier: str, *arguments: str) -> VllmCell:
    """Return a cell with the files of a tier, in which a model keeps its keys and values when its engine ends."""
    tested = name.removesuffix("-model")
    about = f"the tier of {tested} with a model: files with keys and values, which the next engine finds"
    pool = small_pool(*arguments)
    return VllmCell(name=name, about=about, arguments=pool, traits=("persistent tier",), tier=tier, numeric=True)


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
    traits: tuple[str, ...] = RELIABLE_TIER,
) -> VllmCell:
    """Return a cell with LMCache's connector and a server of its own. `tier`: by default the one in the cell's name."""
    return VllmCell(
        name=name,
        about=f"LMCache's server beside the engine (LMCacheMPConnector), {about}",
        arguments=small_pool(*SMALL_CHUNKS, *arguments, blocks=blocks),
        traits=traits,
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
        traits=PERSISTENT_TIER,
    ),
    lmcache_cell(
        "tier-lmcache-seven",
        "chunks of a block, a pool of seven blocks with vLLM's own (LMCache#1969), no adapters",
        NO_ADAPTERS,
        tier="lmcache",
        blocks=7,
        traits=("tier behind seven blocks",),
    ),
    lmcache_cell(
        "tier-lmcache-failures",
        "tier-lmcache with a look at the server each second, no adapters",
        NO_ADAPTERS,
        tier="lmcache-watched",
        traits=("failing tier",),
    ),
    lmcache_cell(
        "tier-lmcache-chunks-failures",
        "tier-lmcache-chunks with a look at the server each second",
        NO_ADAPTERS,
        tier="lmcache-chunks-watched",
        traits=("failing tier",),
    ),
)

TIER_CELLS = (
    tier_cell(
        "tier-offload",
        "vLLM's OffloadingConnector with a pool of 16 blocks",
        traits=(*SESSION_TIER, LIMITED_TIER),
    ),
    tier_cell(
        "tier-offload-small",
        "tier-offload with a host tier of 20 chunks of two blocks each",
        traits=(*RELIABLE_TIER, LIMITED_TIER),
    ),
    tier_cell(
        "tier-files",
        "vLLM's OffloadingConnector with host memory and then files in a folder (TieringOffloadingSpec, tier fs)",
        traits=(*PERSISTENT_TIER, LIMITED_TIER),
    ),
    tier_cell("tier-files-few", "tier-files with host memory for six blocks, which is less than a long prompt has"),
    tier_cell(
        "tier-files-lost",
        "tier-files, whose files are removed or cut while the engine runs",
        tier="files",
        traits=("lost files",),
    ),
    tier_cell(
        "tier-simple",
        "vLLM's SimpleCPUOffloadConnector, which stores blocks when they are computed",
        traits=SESSION_TIER,
    ),
    tier_cell("tier-simple-lazy", "vLLM's SimpleCPUOffloadConnector, which stores blocks shortly before eviction"),
    tier_cell("tier-multi", "vLLM's MultiConnector over OffloadingConnector and SimpleCPUOffloadConnector"),
    tier_cell(
        "tier-multi-of-one",
        "vLLM's MultiConnector over OffloadingConnector alone",
        traits=(*RELIABLE_TIER, "another implementation"),
        twin="tier-offload",
    ),
    tier_cell(
        "tier-example",
        "vLLM's ExampleConnector (files in a folder), which needs each prompt in one step",
        arguments=(NOT_CHUNKED,),
        traits=PERSISTENT_TIER,
    ),
    window_tier_cell("tier-offload-window", "vLLM's OffloadingConnector", tier="offload", traits=("tier of groups",)),
    model_files_cell("tier-files-model", "files-of-a-model"),
    model_files_cell("tier-example-model", "example", NOT_CHUNKED),
    tier_cell("tier-example-chunks", "vLLM's ExampleConnector with chunked prefill", tier="example"),
    tier_cell(
        "tier-kept", "Coldproof's connector: blocks under vLLM's block hashes, synchronous loads", traits=SESSION_TIER
    ),
    tier_cell("tier-failing", "Coldproof's connector: two of three loads fail, vLLM recomputes", traits=FAILING_TIER),
    tier_cell(
        "tier-failing-shared-steps",
        "tier-failing, at most 24 tokens of a prompt in a step, so that another one is computed beside it",
        arguments=(*SMALL_CHUNKS, CHUNK_OF_ONE, "24"),
        tier="failing",
        traits=FAILING_TIER,
    ),
    tier_cell("tier-failing-late", "tier-failing with asynchronous loads", traits=FAILING_TIER),
    window_tier_cell("tier-kept-window", "Coldproof's connector with asynchronous loads", tier="kept-late", blocks=32),
    window_tier_cell("tier-failing-window", "tier-failing-late", tier="failing-late", blocks=32, traits=FAILING_TIER),
    tier_cell("tier-failing-ends", "tier-failing; a failed load ends its request with an error", traits=FAILING_TIER),
    *LMCACHE_CELLS,
)
CONNECTOR = VllmCell(
    name="connector",
    about="the KV connector of --kv-transfer-config, with a pool of 16 blocks",
    arguments=small_pool(*SMALL_CHUNKS),
    traits=(*PERSISTENT_TIER, "failing loads"),
    tier=GIVEN,
    only_fingerprint=True,
    on_request=True,
)
CONNECTOR_EVENTS = msgspec.structs.replace(
    CONNECTOR,
    name="connector-events",
    about="connector, and KV events are published, also by the connector",
    traits=("KV events of a tier",),
    events=True,
)
