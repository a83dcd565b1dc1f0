"""The features of vLLM that can be on at once, as dimensions of crossed cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.server.content import TRUST_FLAG
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.crossings import PAIRS, TRIPLES, Crossings, Dimension, Point, Refusal, Value
from coldproof.adapters.vllm.cells.cell import (
    CHUNK_OF_ONE,
    CHUNK_TOKENS,
    EAGLE,
    MOST_REQUESTS,
    NOT_CHUNKED,
    RUNNER_V2,
    SMALL_CHUNKS,
    VllmCell,
)
from coldproof.adapters.vllm.cells.content import EMBEDS

TRAIT = "features crossed"
# Tokens. A hit of five groups ends at whole blocks of 256, of which the calibration's prompts have some.
CONTEXT, CONTEXTS = 512, {"five-groups": 2048}
RETENTION = "--prefix-cache-retention-interval"
WHOLE_IMAGES = "--disable-chunked-mm-input"
POOL_FLAG, BLOCK_FLAG = "--num-gpu-blocks-override", "--block-size"
FULL, LARGE_POOL, BLOCKS_64 = "full", "large-pool", "blocks-64"
# Blocks that one or two requests of the longest context fill, with blocks of 32 tokens. A state, a window and full
# attention take blocks of one pool.
POOLS = {FULL: 17, "window": 60, "two-windows": 60, "five-groups": 900, "state": 60, "state-blocks": 100}
# Fewer requests than without drafts, for each of which a step has room for three more tokens.
CHUNKS_64 = (*SMALL_CHUNKS, MOST_REQUESTS, "8")
OF_COLDPROOF = ("kept", "kept-late", "failing", "failing-late", "failing-ends")  # its own connector
N_GRAMS = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"prompt_lookup_max":4}'


def flags(name: str, *arguments: str, feature: Capability | None = None) -> Value:
    """Return a value that is a few flags."""
    return Value(name=name, arguments=arguments, feature=feature)


def fields(name: str, *arguments: str, feature: Capability | None = None, **changes: Any) -> Value:
    """Return a value that changes a cell."""
    return Value(name=name, arguments=arguments, fields=tuple(changes.items()), feature=feature)


def tier(name: str) -> Value:
    """Return a second KV tier."""
    feature = Capability.SLOW_TIER if name == "files" else Capability.SECOND_TIER
    return fields(f"tier-{name}", tier=name, feature=feature)


TIERS = Dimension(
    name="second tier",
    values=(
        flags("no-tier"),
        *map(
            tier,
            ("offload", "offload-described", "offload-small", "files", "simple", "simple-lazy", "multi", "example"),
        ),
        *map(tier, OF_COLDPROOF),
    ),
)
PREFILL = Dimension(
    name="prefill",
    values=(
        flags("chunks-64", *CHUNKS_64),
        flags("chunks-24", CHUNK_TOKENS, "24", MOST_REQUESTS, "4"),
        flags("chunks-of-one", CHUNK_OF_ONE, "24", MOST_REQUESTS, "8"),
        flags("whole-prompts", NOT_CHUNKED),
    ),
)
DIMENSIONS = (
    Dimension(name="layers", values=tuple(fields(name, topology=name) for name in POOLS)),
    TIERS,
    PREFILL,
    Dimension(name="pool", values=(flags("small-pool"), flags(LARGE_POOL))),
    Dimension(name="schedule", values=(flags("fcfs"), flags("priority", "--scheduling-policy", "priority"))),
    Dimension(name="events", values=(flags("no-events"), fields("events", events=True, feature=Capability.KV_EVENTS))),
    Dimension(
        name="drafts",
        values=(
            flags("no-drafts"),
            flags("n-grams", "--speculative-config", N_GRAMS, feature=Capability.DRAFT_COUNTS),
            fields("drafts", draft_tokens=3, feature=Capability.DRAFT_COUNTS),
            fields("eagle", draft_tokens=3, drafter=EAGLE, feature=Capability.DRAFT_COUNTS),
        ),
    ),
    Dimension(
        name="content",
        values=(
            flags("tokens"),
            fields("embeds", *EMBEDS, own_answers=True, feature=Capability.EMBEDDING_ROWS),
            fields("images", TRUST_FLAG, images=True, own_answers=True, feature=Capability.IMAGES),
            # No chunk ends within an image, so that it ends where no other rule has it end.
            fields("whole-images", TRUST_FLAG, WHOLE_IMAGES, images=True, own_answers=True, feature=Capability.IMAGES),
        ),
    ),
    Dimension(name="runner", values=(flags("runner-v1"), fields("runner-v2", environment=RUNNER_V2))),
    Dimension(name="block", values=(flags("blocks-32"), flags(BLOCKS_64, BLOCK_FLAG, "64"))),
    # Positions for which windows and states keep what a hit needs: those of prompts, each 64th token too, or all.
    Dimension(
        name="retention",
        values=(
            flags("kept-for-prompts"),
            flags("retained-64", f"{RETENTION}=64"),
            flags("retained-all", f"{RETENTION}=None"),
        ),
    ),
    # Where a hit may end: at whole blocks, or inside one (vLLM's `prefix_match_unit`).
    Dimension(name="match unit", values=(flags("unit-of-blocks"), flags("unit-8", "--prefix-match-unit=8"))),
)
GROUPS = tuple(name for name in POOLS if name != FULL)
REFUSALS = (
    Refusal(
        one=("tier-example",),
        other=tuple(name for name in GROUPS if name != "window"),
        because="vLLM gives ExampleConnector one group of layers, and these layers need several",
    ),
    Refusal(
        one=("tier-offload-small",),
        other=("five-groups", "state-blocks"),
        because="If 'block_size' is specified in kv_connector_extra_config, there must be at least one KV cache group, "
        "and all groups must have the same block size.",
    ),
    Refusal(
        one=("unit-8",),
        other=(FULL,),
        because="Invalid prefix_match_unit=8; with a single KV cache group, prefix-cache hits land on the block size "
        "(32).",
    ),
    Refusal(
        one=("unit-8",),
        other=("window", "two-windows"),
        because="no hit ends inside a block of these layers",
    ),
    Refusal(
        one=("unit-8",),
        other=("tier-example",),
        because="hits end inside a block only with states, and ExampleConnector cannot be with states",
    ),
    Refusal(
        one=("unit-8",),
        other=("drafts", "eagle", "n-grams"),
        because="hits end inside a block only with states, and drafts cannot be with states",
    ),
    Refusal(
        one=("unit-8",),
        other=tuple(value.name for value in map(tier, OF_COLDPROOF)),
        because="Coldproof's connector takes one hash for each block",
    ),
    Refusal(
        one=("unit-8",),
        other=("five-groups",),
        because="Invalid prefix_match_unit=8; prefix-cacheable KV cache group block sizes must be divisible by "
        "prefix_match_unit.",
    ),
    Refusal(
        one=("tier-files",),
        other=("five-groups",),
        because="host memory before the files has fewer blocks than a hit of five groups",
    ),
    Refusal(
        one=("tier-simple-lazy",),
        other=(LARGE_POOL,),
        because="it stores blocks shortly before they are evicted, and a large pool evicts none",
    ),
    Refusal(
        one=("tier-simple", "tier-simple-lazy", "tier-multi"),
        other=("state-blocks",),
        because="with the repair of vllm/mamba-chunks-end-at-another-groups-block, SimpleCPUOffloadConnector ends the "
        "engine: a block may lose its hash while it is copied (not explained yet)",
    ),
    Refusal(
        one=("drafts", "eagle"),
        other=("five-groups",),
        because="the fingerprint worker has a draft model only with blocks of one size",
    ),
    Refusal(
        one=tuple(value.name for value in map(tier, OF_COLDPROOF)),
        other=("five-groups", "state-blocks"),
        because="Coldproof's connector stores blocks of one size",
    ),
    Refusal(
        one=("tier-failing", "tier-failing-ends"),
        other=GROUPS,
        because="vLLM knows failed loads of several groups only where loads are asynchronous",
    ),
    Refusal(
        one=("n-grams", "drafts", "eagle"),
        other=("state", "state-blocks"),
        because="the fingerprint worker has no layers with a state with speculative decoding",
    ),
    Refusal(
        one=("whole-images",),
        other=("state", "state-blocks"),
        because="Chunked MM input is required because we need the flexibility to schedule a multiple of block_size "
        "tokens even if they are in the middle of a mm input",
    ),
    Refusal(
        one=("whole-images",),
        other=("unit-8",),
        because="hits end inside a block only with states, and images are cut there",
    ),
    Refusal(
        one=("retained-64", "retained-all"),
        other=("tier-failing", "tier-failing-ends"),
        because="positions are kept for several groups, which synchronous failures of loads cannot be with",
    ),
    Refusal(
        one=("retained-64", "retained-all"),
        other=(FULL,),
        because="full attention keeps all blocks, whatever the interval",
    ),
    Refusal(
        one=("retained-64",),
        other=("tier-example",),
        because="prefix_cache_retention_interval is set but this model has no sliding-window or Mamba KV cache group, "
        "so retention has no effect.",
    ),
    Refusal(
        one=("retained-64",),
        other=("five-groups",),
        because="prefix_cache_retention_interval (64) must be a non-negative multiple of the scheduler block size "
        "(256)",
    ),
)
# Beside the rows of an array, whose rows with this pair have further values. In a known cause that acts here
# (vllm#52397), no such row showed it within seconds.
ALONE = ("state+tier-offload+unit-8",)
# For the shortest profile: pairs that most models in production have. None meets a known cause, whose replays would
# take all of the profile's time.
FEW = ("window+tier-kept+chunks-24", "state+chunks-24+priority", "five-groups+chunks-of-one+priority")


def crossed_cell(name: str, values: Sequence[Value]) -> VllmCell:
    """Return the cell of a point."""
    chosen = {value.name for value in values}
    changes: dict[str, Any] = {}
    for value in values:
        changes |= dict(value.fields)
    prefill = () if chosen & {value.name for value in PREFILL.values} else CHUNKS_64
    layers = changes.get("topology", FULL)
    pool = POOLS[layers]
    if BLOCKS_64 in chosen and layers == FULL:
        pool = pool // 2 + 1
    elif layers != FULL and changes.get("draft_tokens"):
        pool += pool // 2  # the layer that drafts makes one group of blocks more
    small = () if LARGE_POOL in chosen else (POOL_FLAG, str(pool))
    arguments = [word for value in values for word in value.arguments]
    return VllmCell(
        name=name,
        about="features crossed, that is, on at once",
        arguments=("--max-model-len", str(CONTEXTS.get(layers, CONTEXT)), *small, *prefill, *dict.fromkeys(arguments)),
        traits=(TRAIT,),
        only_fingerprint=True,
        **changes,
    )


def point_of(cell: Cell) -> Point | None:
    """Return the point of a cell, a crossed one or another; None for what the dimensions do not describe."""
    if not isinstance(cell, VllmCell) or cell.pools or cell.prefill_apart or not cell.in_process or cell.numeric:
        return None
    return {one.name: value_of(one, cell) for one in DIMENSIONS}


def value_of(dimension: Dimension, cell: VllmCell) -> str:
    """Return the last value of a dimension that a cell has, or else its default."""
    return next((value.name for value in reversed(dimension.values[1:]) if has(cell, value)), dimension.default)


def has(cell: VllmCell, value: Value) -> bool:
    """Return whether a cell has all that a value says."""
    if value.name == LARGE_POOL:
        return POOL_FLAG not in cell.arguments
    if value.name == BLOCKS_64:
        return cell.number(BLOCK_FLAG) == 64
    plain = msgspec.structs.asdict(cell)
    return set(value.arguments) <= set(cell.arguments) and all(plain[name] == wanted for name, wanted in value.fields)


CROSSINGS = Crossings(
    dimensions=DIMENSIONS,
    refusals=REFUSALS,
    cell=crossed_cell,
    point=point_of,
    chosen={"smoke": FEW, "ci": ALONE},
    strengths={"ci": PAIRS, "release": TRIPLES, "qualify": TRIPLES},
)
