"""Named engine configurations. A cell adds flags to the adapter's own; the report has a column for each.

A cell says which requirements it is for. A requirement that no chosen cell is for runs in the first one all the same,
and says there what it could not exercise: nothing is left out in silence.
"""

from __future__ import annotations

from harness.cell import CHUNK_OF_ONE, KEYS, ROOM, Cell
from harness.engines.kinds import KINDS
from harness.options import UsageError

LAYOUT = ("SALT", "CHAT", "REUSE", "SURFACE", "CTRL-1")


def tight(*arguments: str, blocks: int = 17) -> tuple[str, ...]:
    """A pool of `blocks` (one of them is vLLM's null block), and requests that just fit into it."""
    return ("--num-gpu-blocks-override", str(blocks), "--max-model-len", str((blocks - 1) * 32), *arguments)


# Topologies that only the fingerprint worker has: see adapters/fingerprint/topology.py.
GROUPS = (
    Cell(
        name="groups-window",
        about="a sliding window of 64 tokens beside full attention, a pool that never evicts",
        areas=("GROUP", *KEYS),
        topology="window",
        only_fingerprint=True,
    ),
    Cell(
        name="groups-window-tight",
        about="the same in a pool that two long requests fill, chunks of 64 tokens",
        arguments=("--max-model-len", "512", "--num-gpu-blocks-override", "60", "--max-num-batched-tokens", "64"),
        areas=ROOM,
        topology="window",
        only_fingerprint=True,
    ),
    Cell(
        name="groups-two-windows",
        about="windows of 64 and of 128 tokens beside full attention",
        areas=("GROUP", *KEYS),
        topology="two-windows",
        only_fingerprint=True,
    ),
    Cell(
        name="groups-five",
        about="five groups with blocks of 256, 64, 64, 4 and 8 tokens, windows of 128 (DeepSeek-V4-Flash's layout)",
        areas=("GROUP", *KEYS),
        topology="five-groups",
        only_fingerprint=True,
    ),
    Cell(
        name="groups-five-long",
        about="the same for prompts of up to 374,000 tokens, the length in its report (a kin of vllm#32802)",
        arguments=("--max-model-len", "374000", "--hf-overrides", '{"max_position_embeddings":374000}'),
        areas=("GROUP-1",),
        topology="five-groups",
        only_fingerprint=True,
    ),
    Cell(
        name="groups-state-blocks",
        about="states beside a window with blocks of 8 and full attention with blocks of 64: parts of blocks are hit",
        areas=("GROUP-1",),
        topology="state-blocks",
        only_fingerprint=True,
    ),
    Cell(
        name="groups-state",
        about="layers with a state (Mamba, linear attention), kept at block ends, beside full attention",
        areas=("GROUP", *KEYS),
        topology="state",
        only_fingerprint=True,
    ),
)

HONEST = ("TIER-1", "TIER-2", "TIER-3", "TIER-5")  # loads do not fail


def tiered(name: str, about: str, *arguments: str, tier: str, areas: tuple[str, ...] = HONEST) -> Cell:
    """A pool of 16 blocks with a second tier behind it."""
    return Cell(
        name=name,
        about=about,
        arguments=tight(*arguments),
        areas=areas,
        topology="full",
        tier=tier,
        only_fingerprint=True,
    )


CHUNKS = ("--max-num-batched-tokens", "64")
SECOND_TIERS = (
    tiered("tier-offload", "vLLM's OffloadingConnector behind a pool of 16 blocks", *CHUNKS, tier="offload"),
    tiered("tier-offload-small", "the same with 20 chunks of two blocks each", *CHUNKS, tier="offload-small"),
    tiered("tier-simple", "vLLM's SimpleCPUOffloadConnector, storing what is computed", *CHUNKS, tier="simple"),
    tiered("tier-simple-lazy", "the same, storing what is about to be evicted", *CHUNKS, tier="simple-lazy"),
    tiered("tier-multi", "vLLM's MultiConnector over both", *CHUNKS, tier="multi"),
    tiered(
        "tier-example",
        "vLLM's ExampleConnector (files in a folder), which wants prompts in one piece",
        "--no-enable-chunked-prefill",
        tier="example",
    ),
    tiered("tier-example-chunks", "the same with chunked prefill", *CHUNKS, tier="example"),
    tiered(
        "tier-kept", "a tier of ours that keeps what vLLM's block hashes name, and loads at once", *CHUNKS, tier="kept"
    ),
    tiered(
        "tier-failing", "two of three of its loads fail, and are recomputed", *CHUNKS, tier="failing", areas=("TIER",)
    ),
    tiered("tier-failing-late", "the same with loads that take a while", *CHUNKS, tier="failing-late", areas=("TIER",)),
    tiered(
        "tier-failing-ends", "the same; a request whose load fails ends", *CHUNKS, tier="failing-ends", areas=("TIER",)
    ),
    Cell(
        name="tier-lmcache",
        about="LMCache (LMCACHE_CHUNK_SIZE=32, LMCACHE_LOCAL_CPU=True), which has no connector for a CPU",
        arguments=tight(*CHUNKS),
        areas=HONEST,
        tier="lmcache",
        package="lmcache",
        in_process=False,
    ),
)

CELLS = {
    cell.name: cell
    for cell in (
        Cell(name="default", about="blocks of 32, a pool that never evicts, default scheduler", areas=KEYS),
        Cell(
            name="tight",
            about="a pool of 16 blocks, prefill in chunks of at most 64 tokens, first come first served",
            arguments=tight("--max-num-batched-tokens", "64"),
            areas=ROOM,
        ),
        Cell(
            name="tight-priority",
            about="the same pool, chunks of less than a block, scheduling by priority",
            arguments=tight("--max-num-batched-tokens", "24", "--max-num-seqs", "8", "--scheduling-policy", "priority"),
            areas=("PREEMPT",),
        ),
        Cell(
            name="tightest",
            about="a pool of 8 blocks: two requests fit",
            arguments=tight("--max-num-seqs", "4", blocks=9),
            areas=("PRESS", "PREEMPT", "MIXED"),
        ),
        Cell(
            name="two-at-a-time",
            about="two requests run, the others wait; a pool that never evicts",
            arguments=("--max-num-seqs", "2"),
            areas=("LORA-6", "CHAT-1", "REUSE", "CTRL-1"),
        ),
        Cell(
            name="small-chunks",
            about="prefill in chunks of less than a block, a pool that never evicts",
            arguments=("--max-num-batched-tokens", "24", "--max-num-seqs", "8"),
            areas=("LORA-5", "CHAT", "REUSE", "SURFACE", "CTRL"),
        ),
        Cell(
            name="chunks-side-by-side",
            about="no prompt takes more than 24 tokens of a step: others are looked up between its chunks",
            arguments=(CHUNK_OF_ONE, "24", "--max-num-seqs", "8"),
            areas=("CHAT-1",),
        ),
        Cell(
            name="whole-prompts",
            about="no chunked prefill: a prompt is computed in one step",
            arguments=("--no-enable-chunked-prefill",),
            areas=("CHAT", "REUSE", "SURFACE"),
        ),
        Cell(
            name="blocks-64",
            about="blocks of 64: other boundaries for the same workloads",
            arguments=("--block-size", "64"),
            areas=LAYOUT,
        ),
        Cell(name="blocks-128", about="blocks of 128", arguments=("--block-size", "128"), areas=LAYOUT),
        Cell(
            name="hash-cbor",
            about="block hashes over CBOR (sha256_cbor), which other processes can repeat",
            arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
            areas=("LORA-1", "LORA-4", "SALT", "CHAT", "REUSE"),
        ),
        Cell(
            name="sync",
            about="the scheduler waits for each step's tokens (the CPU build always does)",
            arguments=("--no-async-scheduling",),
            areas=("LORA-6", "CHAT", "REUSE", "CTRL-1"),
        ),
        Cell(
            name="speculative",
            about="n-gram speculative decoding, in the pool of 16 blocks",
            arguments=tight(
                "--speculative-config", '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'
            ),
            areas=("CHAT", "PRESS-1", "PREEMPT", "MIXED"),
            in_process=False,  # vLLM 0.32.0 walks all modules at each start, and trips over what numba has loaded
        ),
        Cell(
            name="sliding-window",
            about="a Gemma 3 with a window of 64 tokens: six groups of KV-cache blocks",
            areas=("GROUP", *LAYOUT),
            alike=False,
            sliding_window=True,
            topology="window",
        ),
        Cell(
            name="sliding-window-retained",
            about="the same model, keeping its windows' blocks at every 64 tokens (prefix_cache_retention_interval)",
            arguments=("--prefix-cache-retention-interval", "64"),
            areas=("CHAT", "REUSE"),
            alike=False,
            sliding_window=True,
            topology="window",
        ),
        Cell(
            name="sliding-window-tight",
            about="the same model in a pool that two of its long requests fill, chunks of 64 tokens",
            arguments=("--max-model-len", "512", "--num-gpu-blocks-override", "90", "--max-num-batched-tokens", "64"),
            areas=("PRESS-3", "PREEMPT-1", "CTRL"),
            alike=False,
            sliding_window=True,
            topology="window",
        ),
        Cell(
            name="kv-bfloat16",
            about="KV in bfloat16 under float32 weights",
            arguments=("--kv-cache-dtype", "bfloat16"),
            areas=LAYOUT,
            alike=False,
            numeric=True,
        ),
        Cell(
            name="bfloat16",
            about="weights and KV in bfloat16: where cold answers repeat, warm ones must equal them too",
            arguments=("--dtype", "bfloat16"),
            areas=LAYOUT,
            alike=False,
            numeric=True,
        ),
        Cell(
            name="events",
            about="KV events are published, a pool that never evicts",
            areas=("EVENT-1", "EVENT-3"),
            events=True,
        ),
        Cell(
            name="events-tight",
            about="KV events are published, a pool of 16 blocks, prefill in chunks of at most 64 tokens",
            arguments=tight("--max-num-batched-tokens", "64"),
            areas=("EVENT-2", "EVENT-3"),
            events=True,
        ),
        Cell(
            name="events-window",
            about="KV events are published, a sliding window of 64 tokens beside full attention",
            areas=("EVENT-4",),
            topology="window",
            events=True,
            only_fingerprint=True,
        ),
        *GROUPS,
        *SECOND_TIERS,
        *(cell for kind in KINDS.values() for cell in kind.cells),
    )
}
ATTACHED = Cell(name="attached", about="the server as its owner configured it")


def plain_cell(engine: str) -> Cell:
    """The cell of an engine for answering in another's stead: its first that has adapters, else its first."""
    fitting = [cell for cell in CELLS.values() if cell.fits(engine)]
    return next((cell for cell in fitting if any(area.startswith("LORA") for area in cell.areas)), fitting[0])


def chosen(names: tuple[str, ...]) -> list[Cell]:
    """The cells of those names. Raises UsageError for one that does not exist."""
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        raise UsageError(f"unknown cell {unknown[0]!r}: --cells list prints them")
    return [CELLS[name] for name in names]


def cells_for(requirement_id: str, cells: list[Cell]) -> list[Cell]:
    """The chosen cells that a requirement is tested in: those that are for it, else the first."""
    return [cell for cell in cells if cell.covers(requirement_id)] or cells[:1]


def listing() -> str:
    """All cells, a line each."""
    width = max(len(name) for name in CELLS)
    return "\n".join(f"{name:<{width}}  {cell.about}" for name, cell in CELLS.items())
