"""Named engine configurations. A cell adds flags to the adapter's own; the report has a column for each.

A cell says which requirements it is for. A requirement that no chosen cell is for runs in the first one all the same,
and says there what it could not exercise: nothing is left out in silence.
"""

from __future__ import annotations

import importlib.util

import msgspec

from harness.options import UsageError

KEYS = ("GROUND", "LORA", "SALT", "CHAT", "REUSE", "SURFACE", "CTRL-1")  # the room is not what matters
ROOM = ("PRESS", "PREEMPT", "CTRL", "MIXED")  # the pool has to be small
LAYOUT = ("SALT", "CHAT", "REUSE", "SURFACE", "CTRL-1")
MOST_REQUESTS, CHUNK_TOKENS = "--max-num-seqs", "--max-num-batched-tokens"
CHUNK_OF_ONE = "--long-prefill-token-threshold"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration: its flags, in a line what it is for, and which requirements (by the start of their ids).

    `alike`: its cold answers are the default cell's, so that one cold engine serves both. `in_process`: it can be
    stepped in this process, several engines of it side by side.
    """

    name: str
    about: str
    arguments: tuple[str, ...] = ()
    areas: tuple[str, ...] = (*KEYS, *ROOM, "GROUP", "EVENT", "TIER")
    alike: bool = True
    in_process: bool = True
    sliding_window: bool = False  # the tiny model with sliding-window layers instead of the plain one
    topology: str = "full"  # the layers that the fingerprint worker says it has
    tier: str | None = None  # the second KV tier: see adapters/tiers.py
    package: str | None = None  # of Python, that the engine needs beside its own
    numeric: bool = False  # about numbers, of which the fingerprint worker has none
    events: bool = False  # KV events are published
    only_fingerprint: bool = False  # layers that no model small enough for a CPU has
    engine: str = "vllm"  # whose flags these are

    def covers(self, requirement_id: str) -> bool:
        """Whether a requirement is worth testing here."""
        return requirement_id.startswith(self.areas)

    def fits(self, engine: str) -> bool:
        """Whether an engine of this adapter can be started so: vLLM's cells are for both of its adapters."""
        stepped = engine == "vllm-inproc"
        return self.engine == ("vllm" if stepped else engine) and (self.in_process or not stepped)

    def is_for(self, fingerprint: bool) -> bool:
        """Whether the engine with (or without) the fingerprint worker can be started so."""
        return not self.numeric if fingerprint else not self.only_fingerprint

    @property
    def installed(self) -> bool:
        """Whether the package that it needs is there."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    @property
    def chunked(self) -> bool:
        """Whether even a short prompt is computed in several steps."""
        return CHUNK_TOKENS in self.arguments or CHUNK_OF_ONE in self.arguments

    @property
    def most_requests(self) -> int | None:
        """How many requests run at a time, where the flags say so."""
        words = list(self.arguments)
        return int(words[words.index(MOST_REQUESTS) + 1]) if MOST_REQUESTS in words else None


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

# llama.cpp: fields of its parameters instead of flags. Cold answers come from an engine of each cell's own kind.
SEQUENCES = ("GROUND", "LORA", "REUSE", "CTRL-1", "CTRL-2", "MIXED")
NO_HOST_CACHE = "cache_ram_mib=0"


def llamacpp(name: str, about: str, *fields: str) -> Cell:
    """A llama.cpp server with these fields of its parameters."""
    return Cell(name=name, about=about, arguments=fields, areas=SEQUENCES, alike=False, engine="llamacpp")


LLAMACPP = (
    llamacpp("llamacpp", "four slots of 2,048 tokens, without the host's prompt cache", NO_HOST_CACHE),
    llamacpp("llamacpp-one-slot", "one slot, without the host's prompt cache", "n_parallel=1", NO_HOST_CACHE),
    llamacpp("llamacpp-host-cache", "one slot, and the host's prompt cache for what it loses", "n_parallel=1"),
    llamacpp("llamacpp-unified", "four slots that share one KV buffer", "kv_unified=1", NO_HOST_CACHE),
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
        *LLAMACPP,
    )
}
ATTACHED = Cell(name="attached", about="the server as its owner configured it")


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
