"""The cells of vLLM, for the server and the in-process engine."""

from __future__ import annotations

import msgspec

from coldproof.adapters.server.content import TRUST_FLAG
from coldproof.adapters.spec.cell import KEYS, ROOM, Cell, ModelLayers
from coldproof.adapters.vllm.kv_tiers import GIVEN

SERVER, IN_PROCESS = "vllm", "vllm-inproc"  # both adapters start these cells
FINGERPRINT = "fingerprint"  # the name of the worker that computes digests instead of a model
MOST_REQUESTS, CHUNK_TOKENS = "--max-num-seqs", "--max-num-batched-tokens"
CHUNK_OF_ONE = "--long-prefill-token-threshold"
DATA_RANKS, TENSOR_RANKS, STAGES = "--data-parallel-size", "--tensor-parallel-size", "--pipeline-parallel-size"
LEASE = "--kv-lease"  # of a pair: how long the prefiller keeps what nobody has fetched (see prefill_decode.py)
Variables = tuple[tuple[str, str], ...]  # of the environment, with their values
# vLLM's default where Triton is usable, so on GPUs. Its scheduler describes resumed requests to the worker as new ones.
RUNNER_V1, RUNNER_V2 = ((("VLLM_USE_V2_MODEL_RUNNER", number),) for number in "01")


class VllmCell(Cell, frozen=True, kw_only=True):
    """One configuration of vLLM. `in_process`: several engines of this cell can run side by side in this process."""

    in_process: bool = True
    topology: str = "full"  # the layers that the fingerprint worker declares: see fingerprint/topology.py
    tier: str | None = None  # the second KV tier: see adapters/vllm/kv_tiers.py
    numeric: bool = False  # tests the arithmetic of a model, which the fingerprint worker does not use
    events: bool = False  # the engine publishes KV events
    weight_transfer: bool = False  # with Coldproof's backend, which reads weights from a folder
    environment: Variables = ()  # variables, which replace the user's
    images: bool = False  # the model takes images; it has no weights
    draft_tokens: int = 0  # that a draft model proposes at once, which is the served model again
    prefill_apart: bool = False  # two servers: one computes prompts, the other one decodes (see prefill_decode.py)
    pools: bool = False  # the engine returns vectors, and no tokens
    only_fingerprint: bool = False  # no model that is small enough for a CPU runs in it
    engine: str = SERVER

    def obstacle(self, engine: str, worker: str) -> str:
        """Return why an engine with this worker cannot be started in this cell; an empty string if it can."""
        if self.only_fingerprint and worker != FINGERPRINT:
            return f"cell {self.name!r} runs no model on a CPU: add --worker fingerprint"
        if self.numeric and worker == FINGERPRINT:
            return f"cell {self.name!r} tests a model's arithmetic, and the fingerprint worker has none"
        if engine == IN_PROCESS and not self.in_process:
            return f"cell {self.name!r} needs a server: leave out --engine {IN_PROCESS}, or choose other cells"
        return "" if engine == IN_PROCESS else super().obstacle(engine, worker)

    @property
    def chunked(self) -> bool:
        """Return whether even a short prompt is computed in several steps."""
        return CHUNK_TOKENS in self.arguments or CHUNK_OF_ONE in self.arguments

    @property
    def most_requests(self) -> int | None:
        """Return the maximum number of running requests; None if the flags do not set it."""
        return self.number(MOST_REQUESTS)

    @property
    def model_ranks(self) -> int:
        """Return the number of ranks over which the model is spread."""
        return (self.number(TENSOR_RANKS) or 1) * (self.number(STAGES) or 1)

    def number(self, flag: str) -> int | None:
        """Return the number that follows a flag; None without the flag."""
        words = list(self.arguments)
        return int(words[words.index(flag) + 1]) if flag in words else None


SMALL_CHUNKS = (CHUNK_TOKENS, "64")
NOT_CHUNKED = "--no-enable-chunked-prefill"
EMBEDS = ("--enable-prompt-embeds", TRUST_FLAG)
SEEING = (TRUST_FLAG, "--no-enable-lora")  # the generated adapters do not fit this model
NARROW_CHUNKS = (CHUNK_TOKENS, "24", MOST_REQUESTS, "8")  # smaller than a block
LAYOUT_AREAS = ("SALT", "CHAT", "REUSE", "SURFACE", "CTRL-1")


def window_pool(blocks: int) -> tuple[str, ...]:
    """Return flags for the layers of the topology `window`. Two long requests fill 60 blocks, one fills 32."""
    return ("--max-model-len", "512", "--num-gpu-blocks-override", str(blocks), *SMALL_CHUNKS)


def small_pool(*arguments: str, blocks: int = 17) -> tuple[str, ...]:
    """Return flags for a pool of `blocks` (including vLLM's null block) that one request of maximum length fills."""
    return ("--num-gpu-blocks-override", str(blocks), "--max-model-len", str((blocks - 1) * 32), *arguments)


def layout_cell(
    name: str, about: str, topology: str, *arguments: str, areas: tuple[str, ...] = ("GROUP", *KEYS)
) -> VllmCell:
    """Return a cell with a topology that only the fingerprint worker has: see adapters/vllm/fingerprint/topology.py."""
    return VllmCell(name=name, about=about, topology=topology, arguments=arguments, areas=areas, only_fingerprint=True)


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
                areas=("GROUP-3",),
            ),
            on_request=True,
        )
        for size, blocks in pools.items()
    )


STATE_BLOCK = 64  # of the generated model with states: vLLM makes a block as large as a state


def state_cell(name: str, about: str, *arguments: str, areas: tuple[str, ...] = ("GROUP", *LAYOUT_AREAS)) -> VllmCell:
    """Return a cell with a model of Granite 4's shape, states beside attention. The fingerprint worker has
    `groups-state` for it.
    """
    return VllmCell(
        name=name,
        about=about,
        arguments=arguments,
        areas=areas,
        alike=False,
        model=ModelLayers.STATE,
        numeric=True,
    )


STATE_CELLS = (
    state_cell(
        "states", "a Granite 4 model: states beside attention, chunks of one block", CHUNK_TOKENS, str(STATE_BLOCK)
    ),
    state_cell(
        "states-half-chunks",
        "the Granite 4 model; chunks of half a block",
        *(CHUNK_TOKENS, str(STATE_BLOCK // 2)),
        areas=("GROUP",),
    ),
    state_cell(
        "states-tight",
        "the Granite 4 model with a pool that two long requests fill",
        *("--max-model-len", "512", "--num-gpu-blocks-override", "24", CHUNK_TOKENS, str(STATE_BLOCK)),
        areas=ROOM,
    ),
    state_cell("states-whole-chunks", "the Granite 4 model; chunks of several blocks", areas=("GROUP",)),
)

GROUP_CELLS = (
    layout_cell(
        "groups-window", "a sliding window of 64 tokens beside full attention, a pool that never evicts", "window"
    ),
    layout_cell(
        "groups-window-tight",
        "groups-window with a pool that two long requests fill, chunks of 64 tokens",
        "window",
        *window_pool(60),
        areas=ROOM,
    ),
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
        areas=("GROUP-1", "GROUP-3"),
    ),
    *long_cells("0", fitting=6400, roomy=25_000),
    *long_cells("16384", fitting=7600, roomy=26_000),
    *long_cells("none", fitting=86_000, roomy=130_000),
    layout_cell(
        "groups-state-blocks",
        "states, a window with blocks of 8 and full attention with blocks of 64: hits can end inside a block",
        "state-blocks",
        areas=("GROUP-1",),
    ),
    layout_cell(
        "groups-state",
        "layers with a state (Mamba, linear attention), stored at block ends, beside full attention",
        "state",
    ),
)

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


NO_ADAPTERS = "--no-enable-lora"  # LMCache's keys have no adapter, so that adapters would hide all other causes
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


def rank_cell(name: str, about: str, *arguments: str, numeric: bool) -> VllmCell:
    """Return a cell of a server with several ranks."""
    return VllmCell(name=name, about=about, arguments=arguments, areas=("DIST",), numeric=numeric, in_process=False)


RANK_CELLS = (
    rank_cell(
        "dp2",
        "two ranks that serve whole requests, each with a cache (data parallel 2)",
        DATA_RANKS,
        "2",
        numeric=False,
    ),
    rank_cell("tp2", "each layer is spread over two ranks (tensor parallel 2)", TENSOR_RANKS, "2", numeric=True),
    VllmCell(
        name="pp2",
        about="each of two ranks has half of the layers (pipeline parallel 2); on a CPU vLLM 0.32.0 ends in eager mode",
        arguments=(STAGES, "2"),
        areas=("DIST-2",),
        numeric=True,
        in_process=False,
        on_request=True,
    ),
)


def pair_cell(
    name: str,
    about: str,
    *arguments: str,
    areas: tuple[str, ...],
    tier: str | None = None,
    package: str | None = None,
    environment: Variables = (),
) -> VllmCell:
    """Return a cell of two servers: one computes prompts, the other one decodes. `tier`: both have it, and what one of
    them stores there, the other one finds; None: they transfer KV by NIXL."""
    return VllmCell(
        name=name,
        about=about,
        arguments=arguments,
        areas=areas,
        package="nixl" if tier is None else package,
        numeric=True,
        in_process=False,
        prefill_apart=True,
        tier=tier,
        environment=environment,
    )


def lmcache_pair_cell(
    name: str, about: str, *arguments: str, areas: tuple[str, ...], tier: str = "lmcache"
) -> VllmCell:
    """Return a cell of two servers that are clients of one LMCache server."""
    return pair_cell(
        name,
        f"two engines that share one LMCache server: one computes prompts, the other one decodes; {about}",
        *arguments,
        tier=tier,
        package="lmcache",
        environment=LMCACHE_ENVIRONMENT,
        areas=areas,
    )


PAIR_CELLS = (
    pair_cell(
        "prefill-decode",
        "one engine computes prompts, another one fetches their KV by NixlConnector and decodes",
        areas=("PD",),
    ),
    pair_cell(
        "prefill-decode-tight",
        "prefill-decode with pools that one request of maximum length fills, chunks of 64 tokens",
        *small_pool(*SMALL_CHUNKS),
        areas=("PD-1",),
    ),
    pair_cell(
        "prefill-decode-failures",
        "prefill-decode-tight in which the prefiller keeps what nobody has fetched for three seconds",
        *small_pool(*SMALL_CHUNKS),
        LEASE,
        "3",
        areas=("PD-3",),
    ),
    pair_cell(
        "prefill-decode-example",
        "two engines that share the folder of vLLM's ExampleConnector: one computes prompts, the other one decodes",
        NOT_CHUNKED,
        tier="example",
        areas=("PD-1", "PD-2"),
    ),
    pair_cell(
        "prefill-decode-files",
        "two engines that share the files of vLLM's OffloadingConnector: one computes prompts, the other one decodes",
        tier="files-of-prompts",
        areas=("PD-1", "PD-2"),
    ),
    lmcache_pair_cell("prefill-decode-lmcache", "pools that never evict", areas=("PD-1", "PD-2")),
    lmcache_pair_cell(
        "prefill-decode-lmcache-tight",
        "pools that one request of maximum length fills, chunks of 64 tokens, no adapters",
        *small_pool(*SMALL_CHUNKS, NO_ADAPTERS),
        areas=("PD",),
    ),
    lmcache_pair_cell(
        "prefill-decode-lmcache-failures",
        "prefill-decode-lmcache-tight in which both look at the server each second",
        *small_pool(*SMALL_CHUNKS, NO_ADAPTERS),
        areas=("PD-3",),
        tier="lmcache-watched",
    ),
    lmcache_pair_cell(
        "prefill-decode-lmcache-files",
        "prefill-decode-lmcache-failures with memory for about 30 chunks and then files in a folder",
        *small_pool(*SMALL_CHUNKS, NO_ADAPTERS),
        areas=("PD",),
        tier="lmcache-files-watched",
    ),
)


# Classes from the output layer's rows of three tokens: a model that generates has no layer for classes.
SCORE = '{"method":"no_post_processing","classifier_from_token":["a"],"num_labels":1}'
CLASSES = '{"method":"no_post_processing","classifier_from_token":["a","b","c"],"num_labels":3}'


def pooling_cell(name: str, about: str, convert: str, *arguments: str) -> VllmCell:
    """Return a cell whose model is served for its vectors."""
    flags = ("--runner", "pooling", "--convert", convert, *arguments)
    return VllmCell(name=name, about=about, arguments=flags, areas=("POOL",), own_answers=True, pools=True)


POOLING_CELLS = (
    pooling_cell(
        "pooling",
        "embeddings (the last token's state), chunks of 24 tokens, a pool that never evicts",
        "embed",
        *NARROW_CHUNKS,
    ),
    pooling_cell(
        "pooling-tokens",
        "an embedding of each token, chunks of 24 tokens, a pool that never evicts",
        "embed",
        *("--pooler-config", '{"task":"token_embed"}'),
        *NARROW_CHUNKS,
    ),
    pooling_cell(
        "pooling-tight",
        "embeddings with a pool of 16 blocks, chunks of 64 tokens",
        "embed",
        *small_pool(*SMALL_CHUNKS),
    ),
    pooling_cell(
        "pooling-classes",
        "classifications, chunks of 24 tokens, a pool that never evicts",
        "classify",
        *("--hf-overrides", CLASSES),
        *NARROW_CHUNKS,
    ),
    pooling_cell(
        "pooling-scores",
        "scores of two texts (one class), chunks of 24 tokens, a pool that never evicts",
        "classify",
        *("--hf-overrides", SCORE),
        *NARROW_CHUNKS,
    ),
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

CELLS = (
    VllmCell(
        name="default",
        about="blocks of 32 tokens, a pool that never evicts, default scheduler",
        areas=(*KEYS, "WEIGHT", "ENTRY", "SESS-2"),
    ),
    VllmCell(
        name="weight-transfer",
        about="weights can be transferred, by a backend that reads them from a folder; a pool that never evicts",
        areas=("WEIGHT-1", "WEIGHT-3", "WEIGHT-4"),  # those in which the route makes a difference
        weight_transfer=True,
    ),
    VllmCell(
        name="tight",
        about="a pool of 16 blocks, prefill in chunks of at most 64 tokens, first come first served",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=(*ROOM, "SESS-1"),
    ),
    VllmCell(
        name="tight-priority",
        about="a pool of 16 blocks, chunks smaller than a block, priority scheduling",
        arguments=small_pool(*NARROW_CHUNKS, "--scheduling-policy", "priority"),
        areas=("PREEMPT",),
    ),
    VllmCell(
        name="priority",
        about="priority scheduling, at most four running requests, the others wait; a pool that never evicts",
        arguments=("--scheduling-policy", "priority", "--max-num-seqs", "4"),
        areas=("CHAT", "REUSE"),  # MIXED-1 needs a pool that evicts
    ),
    VllmCell(
        name="tightest",
        about="a pool of 8 blocks: two requests fit",
        arguments=small_pool("--max-num-seqs", "4", blocks=9),
        areas=("PRESS", "PREEMPT", "MIXED"),
    ),
    VllmCell(
        name="two-at-a-time",
        about="at most two running requests, the others wait; a pool that never evicts",
        arguments=("--max-num-seqs", "2"),
        areas=("LORA-6", "CHAT-1", "REUSE", "CTRL-1"),
    ),
    VllmCell(
        name="small-chunks",
        about="prefill in chunks smaller than a block, a pool that never evicts",
        arguments=NARROW_CHUNKS,
        areas=("LORA-5", "CHAT", "REUSE", "SURFACE", "CTRL", "SESS-1"),
    ),
    VllmCell(
        name="chunks-side-by-side",
        about="at most 24 tokens of each prompt per step: other prompts are looked up between its chunks",
        arguments=(CHUNK_OF_ONE, "24", "--max-num-seqs", "8"),
        areas=("CHAT-1",),
    ),
    VllmCell(
        name="whole-prompts",
        about="no chunked prefill: a prompt is computed in one step",
        arguments=(NOT_CHUNKED,),
        areas=("CHAT", "REUSE", "SURFACE"),
    ),
    VllmCell(
        name="blocks-64",
        about="blocks of 64 tokens: the same workloads with other block boundaries",
        arguments=("--block-size", "64"),
        areas=LAYOUT_AREAS,
    ),
    VllmCell(name="blocks-128", about="blocks of 128 tokens", arguments=("--block-size", "128"), areas=LAYOUT_AREAS),
    VllmCell(
        name="hash-cbor",
        about="block hashes over CBOR (sha256_cbor), which other processes can reproduce",
        arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
        areas=("LORA-1", "LORA-4", "SALT", "CHAT", "REUSE"),
    ),
    VllmCell(
        name="sync",
        about="synchronous scheduling: the scheduler waits for the tokens of each step (the CPU build always does)",
        arguments=("--no-async-scheduling",),
        areas=("LORA-6", "CHAT", "REUSE", "CTRL-1"),
    ),
    VllmCell(
        name="speculative",
        about="n-gram speculative decoding with a pool of 16 blocks",
        arguments=small_pool(
            "--speculative-config",
            # One equal token is enough for drafts. A model with random weights repeats no longer n-grams.
            '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":1,"prompt_lookup_max":4}',
        ),
        areas=("CHAT", "PRESS-1", "PREEMPT", "MIXED", "SPEC", "SESS-1"),
    ),
    VllmCell(
        name="speculative-model",
        about="speculative decoding with a draft model, which has layers of its own in the blocks; no evictions",
        arguments=("--max-model-len", "512"),
        areas=("SPEC", "CHAT"),
        draft_tokens=3,
    ),
    VllmCell(
        name="sliding-window",
        about="a Gemma 3 model with a window of 64 tokens: six groups of KV-cache blocks",
        areas=("GROUP", *LAYOUT_AREAS),
        alike=False,
        model=ModelLayers.WINDOW,
        topology="window",
    ),
    VllmCell(
        name="sliding-window-retained",
        about="the Gemma 3 model; window blocks are retained every 64 tokens (prefix_cache_retention_interval)",
        arguments=("--prefix-cache-retention-interval", "64"),
        areas=("CHAT", "REUSE"),
        alike=False,
        model=ModelLayers.WINDOW,
        topology="window",
    ),
    VllmCell(
        name="sliding-window-tight",
        about="the Gemma 3 model with a pool that two long requests fill, chunks of 64 tokens",
        arguments=("--max-model-len", "512", "--num-gpu-blocks-override", "90", "--max-num-batched-tokens", "64"),
        areas=("PRESS-3", "PREEMPT-1", "CTRL"),
        alike=False,
        model=ModelLayers.WINDOW,
        topology="window",
    ),
    *STATE_CELLS,
    VllmCell(
        name="kv-bfloat16",
        about="KV in bfloat16, weights in float32",
        arguments=("--kv-cache-dtype", "bfloat16"),
        areas=LAYOUT_AREAS,
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="kv-fp8",
        about="KV in 8-bit floating point (e4m3), weights in float32; on a CPU it needs AVX-512",
        arguments=("--kv-cache-dtype", "fp8"),
        areas=LAYOUT_AREAS,
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="bfloat16",
        about="weights and KV in bfloat16: if cold answers are deterministic, warm answers must equal them",
        arguments=("--dtype", "bfloat16"),
        areas=LAYOUT_AREAS,
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="weights-fp8",
        about="weights and activations in 8-bit floating point (a scale for each row and token), the rest in bfloat16",
        arguments=("--quantization", "fp8_per_channel", "--dtype", "bfloat16"),
        areas=LAYOUT_AREAS,
        alike=False,
        numeric=True,
    ),
    VllmCell(
        name="runner-v2",
        about="vLLM's model runner V2, the default on GPUs, with a pool of 16 blocks and small chunks",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=("LORA-1", "SALT", "CHAT", "REUSE", "SESS-1", *ROOM),
        environment=RUNNER_V2,
        only_fingerprint=True,
    ),
    VllmCell(
        name="events",
        about="KV events are published, a pool that never evicts",
        areas=("EVENT-1", "EVENT-3", "EVENT-5"),
        events=True,
    ),
    VllmCell(
        name="events-tight",
        about="KV events are published, a pool of 16 blocks, prefill in chunks of at most 64 tokens",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=("EVENT-2", "EVENT-3"),
        events=True,
    ),
    VllmCell(
        name="events-window",
        about="KV events are published, a sliding window of 64 tokens beside full attention",
        areas=("EVENT-4",),
        topology="window",
        events=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="events-offload",
        about="KV events are published, also by vLLM's OffloadingConnector behind a pool of 16 blocks",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=("EVENT-1", "EVENT-2", "EVENT-3"),
        tier="offload-described",
        events=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="embeds",
        about="prompts with embedding rows (--enable-prompt-embeds), a pool that never evicts",
        arguments=EMBEDS,
        areas=("EMBED",),
        own_answers=True,
    ),
    VllmCell(
        name="embeds-tight",
        about="prompts with embedding rows, a pool of 16 blocks, prefill in chunks of at most 64 tokens",
        arguments=small_pool(*EMBEDS, *SMALL_CHUNKS),
        areas=("EMBED",),
        own_answers=True,
    ),
    VllmCell(
        name="images",
        about="prompts with images (an Idefics3 without weights), a pool that never evicts",
        arguments=(TRUST_FLAG,),
        areas=("MM-1", "MM-2", "MM-4"),
        images=True,
        own_answers=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="images-towers",
        about="prompts with images, and adapters that change the vision tower (--enable-tower-connector-lora)",
        arguments=("--enable-tower-connector-lora", TRUST_FLAG),
        areas=("MM-4",),
        images=True,
        own_answers=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="images-tight",
        about="prompts with images, a pool of 16 blocks, chunks of 24 tokens, an encoder cache of one image",
        arguments=small_pool(TRUST_FLAG, *NARROW_CHUNKS),
        areas=("MM-3",),
        images=True,
        own_answers=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="images-model",
        about="prompts with images, a generated Idefics3 that computes",
        arguments=SEEING,
        areas=("MM-1", "MM-2", "MM-4"),
        model=ModelLayers.IMAGES,
        numeric=True,
        alike=False,
    ),
    VllmCell(
        name="images-model-tight",
        about="the generated Idefics3, a pool of 16 blocks, chunks of 24 tokens, an encoder cache of one image",
        arguments=small_pool(*SEEING, *NARROW_CHUNKS),
        areas=("MM-3",),
        model=ModelLayers.IMAGES,
        numeric=True,
        alike=False,
    ),
    *GROUP_CELLS,
    *TIER_CELLS,
    *RANK_CELLS,
    *PAIR_CELLS,
    *POOLING_CELLS,
    CONNECTOR,
    CONNECTOR_EVENTS,
)
