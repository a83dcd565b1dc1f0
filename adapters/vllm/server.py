"""Starts vLLM's OpenAI-compatible server, the default engine, on CPU and on GPU.

The server is started as a user would start it. Only environment variables are added, most of them for CPU engines.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import requests
import tenacity
from packaging.version import Version

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, Forking, free_port, port_is_taken, python_path
from coldproof.adapters.common.redact import redacted
from coldproof.adapters.common.score_noise import VARIABLE
from coldproof.adapters.common.scratch import ScratchFolder
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, EngineStartError, MalformedAnswer
from coldproof.adapters.protocol.kv_events import hash_rule
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape, GroupShape
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.engine import EventStream, ServerEngine
from coldproof.adapters.server.event_socket import EventSocket
from coldproof.adapters.server.probes import ProbeResult, probe, provenance_support
from coldproof.adapters.vllm import content_support
from coldproof.adapters.vllm.cells.cell import Variables
from coldproof.adapters.vllm.fingerprint.topology import Topology, group_shapes, has_states, topology_flags
from coldproof.adapters.vllm.flags import DRAFTS_FLAG, split_flag
from coldproof.adapters.vllm.kv_tiers import Tier, persistence, stores_before_eviction, tier_flags
from coldproof.adapters.vllm.pair_support import of_pair
from coldproof.adapters.vllm.plugins import TRANSFER_FLAGS, digest_plugin, transfer_plugin
from coldproof.adapters.vllm.releases import (
    installed_version,
    is_cpu_build,
    is_cuda_build,
    pool_variable,
    released_from,
    thread_binding,
)
from coldproof.adapters.vllm.weight_support import of_server

START_SECONDS = 300.0
CHANGED_FLAGS = {
    EngineChange.KV_FORMAT: ("--kv-cache-dtype", "bfloat16"),
    EngineChange.ROPE: ("--hf-overrides", '{"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}'),
}
SERVER, PAIR = "vllm.entrypoints.openai.api_server", "coldproof.adapters.vllm.prefill_decode"
BLOCK = 32  # tokens; the CPU attention kernel needs a multiple of 32
# With models this small, spinning OpenMP threads are a hundred times slower on a busy machine.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": thread_binding(installed_version()),
    **pool_variable(installed_version()),
    "NUMBA_NUM_THREADS": "1",  # for n-gram speculation; with more threads a server on a busy machine does not start
}
# Seen on an H200 with vLLM 0.26.0: with both, prefill and decode of a batch of any size give the same scores in
# bfloat16; with FlashAttention 3 in place of Triton they do not.
EXACT_ENVIRONMENT = {"VLLM_BATCH_INVARIANT": "1"}
EXACT_FLAGS = ("--attention-backend", "TRITON_ATTN")
LORA_NUMBERS = ("bfloat16", "half", "float16")  # what vLLM's LoRA kernels for GPUs compute with
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # enables /reset_prefix_cache
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
}
# vLLM computes the root of all block hashes from it. Without it, older versions use a random, unpublished root.
HASH_SEED = "PYTHONHASHSEED"
SOCKETS = "VLLM_RPC_BASE_PATH"
FORKING = Forking(preload="coldproof.adapters.vllm.forked:preload", run="coldproof.adapters.vllm.forked:serve")
# Several engines of a run share one GPU: the engine under test, the oracle, a fresh engine for confirmation.
GPU_SHARE = "0.25"
# A quarter of a GPU would be a million blocks of a generated model. With a size, vLLM does not measure how much memory
# is free either, which fails while another engine starts or stops ("Error in memory profiling"). A CPU engine fills its
# pool with zeros when it starts; of a generated model, 256 MiB are 262,144 tokens.
POOL_FLAG = "--kv-cache-memory-bytes"
CPU_KV_BYTES, GENERATED_CPU_KV_BYTES, GENERATED_GPU_KV_BYTES = (str(1 << bits) for bits in (30, 28, 30))
SLEEP_MODE = "--enable-sleep-mode"
CLOSES_AN_ENDPOINT = Version("0.32.dev0")  # the first version that is known to open /inference/v1 only with a flag
LORA_VOCABULARY = 258_048  # tokens; "When using LoRA, vocab size must be <= 258048" (LogitsProcessorWithLoRA)
LORA_RANKS = (16, 32, 64, 128, 256)  # the default, and others that all supported versions have


class AdapterConfig(msgspec.Struct):
    """What is read of an adapter's files: its rank."""

    r: int


class ModelConfig(msgspec.Struct, frozen=True):
    """The field of a model's config.json that decides about adapters."""

    vocab_size: int = 0


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to start one server. `arguments` come last on its command line, so they override the other flags."""

    model: str
    generated: bool = False  # a model of Coldproof's, which needs little memory
    exact: bool = False  # on a GPU: kernels whose answers depend on no batch
    prefix_caching: bool = True
    arguments: tuple[str, ...] = ()
    log: Path
    files: Path | None = None  # as in StartOptions
    adapter_path: str | None = None
    lora_rank: int = 64  # the largest rank of an adapter
    probed: ProbeResult | None = None  # of an identical engine; then this engine gets no probe requests
    port: int | None = None
    most_requests: int | None = None  # from the flags, because no metric reports it; see EngineShape
    step_tokens: int | None = None  # likewise
    topology: Topology | None = None  # the fingerprint worker's layers; None: a model
    tier: Tier | None = None  # ignored without prefix caching
    tier_port: int = 0  # for a tier with a server
    groups: tuple[GroupShape, ...] = ()  # the KV-cache groups of the model, because no metric reports them
    events: bool = False  # publish KV events
    environment: Variables = ()  # the cell's variables, which replace the user's
    storage: Path | None = None  # the tier's folder for KV that outlives the engine; None: one of its own
    changed: EngineChange = EngineChange.NOTHING  # what is different about the engine
    model_ranks: int = 1  # over which the model is spread
    weight_transfer: bool = False  # weights can be transferred from a folder
    prefill_apart: bool = False  # start two servers, of which one computes prompts and the other one decodes


def keeps_known_positions(options: VllmOptions, groups: tuple[GroupShape, ...], shape: EngineShape) -> bool:
    """Return whether the positions for which a server's sparse layers keep blocks follow from its interval alone.

    Other rules apply to hits with a second tier, with drafts, and where a hit may end inside a block. A state is kept
    only where a chunk ends, whatever the interval.
    """
    states = options.topology is not None and has_states(options.topology)
    drafts, _ = split_flag(options.arguments, DRAFTS_FLAG)
    plain = options.tier is None and not options.prefill_apart and drafts is None
    return plain and not (states and (len({group.block for group in groups}) > 1 or shape.kept_every != 0))


def spawn(options: VllmOptions, *, on_process: Callable[[EngineProcess], None]) -> ServerEngine:
    """Start a server and wait until it answers. `on_process` gets the process at once, so that the caller can stop it.

    Raises EngineStartError, with the end of the log, if the server terminates or is not ready in time.
    """
    check_model(options.model)
    if options.port is not None and port_is_taken(options.port):
        raise EngineStartError(f"port {options.port} is in use: choose another one in --engine-args, or leave it out")
    port = options.port or free_port()
    events = EventSocket() if options.events else None
    command = server_command(options, port, () if events is None else events.flags)
    process = EngineProcess(
        [sys.executable, *command[1:]],
        environment(options.environment, events=options.events, exact=options.exact, plugins=plugins(options)),
        options.log,
        forking=FORKING if is_cpu_build() else None,
    )
    on_process(process)
    client = HttpClient(f"http://127.0.0.1:{port}", alive=process.running)
    with contextlib.ExitStack() as failed_start:
        if events is not None:
            failed_start.callback(events.close)
        failed_start.callback(process.stop)
        try:
            wait_ready(client, process)
            process.record_processes()
            probed = options.probed or probe(client, spawned=True, adapter_path=options.adapter_path)
        except EngineStartError as problem:
            hint = numbers_hint(command)
            raise EngineStartError(f"{hint}. {problem}" if hint else str(problem)) from problem
        except (EngineDied, MalformedAnswer) as problem:
            how = "(during the capability probes); the end of its log"
            raise EngineStartError(f"{problem} {how}:\n{process.tail()}") from problem
        failed_start.pop_all()
    shown = effective_environment(options.environment, events=options.events, exact=options.exact)
    config = {"command": redacted(shlex.join(command)), "environment": environment_text(shown)}
    groups = options.groups if options.topology is None else group_shapes(options.topology, BLOCK)
    tier = options.tier
    shape = msgspec.structs.replace(
        probed.shape,
        block_size=math.lcm(*(group.block for group in groups)) if groups else probed.shape.block_size,
        most_requests=options.most_requests,
        step_tokens=options.step_tokens,
        groups=() if probed.shape.uniform else groups,
        kept_every=probed.shape.kept_every if keeps_known_positions(options, groups, probed.shape) else None,
        publishes_answers=not options.prefill_apart,
        # NIXL's transfers have the counters of a tier.
        second_tier=probed.shape.second_tier and (tier is not None or not options.prefill_apart),
        failed_load_ends_request=tier is not None and tier.ends_requests,
        evicts_oldest=tier is None or not stores_before_eviction(*(one.options for one in (tier, *tier.parts))),
    )
    shape, content = content_support.of_server(options.model, command, client, shape)
    capabilities = {
        **probed.capabilities,
        Capability.PROVENANCE: provenance_support(digests=options.topology is not None),
        Capability.PERSISTENT_KV: persistence(options.tier),
        **content,
    }
    if options.model_ranks > 1:
        evidence = f"the model is spread over {options.model_ranks} ranks, as set by the flags of the cell"
        capabilities[Capability.SEVERAL_RANKS] = Support(True, evidence)
    if options.prefill_apart:
        capabilities |= of_pair(command, shape, capabilities)
    capabilities |= of_server(
        capabilities,
        transfers=options.weight_transfer,
        digests=options.topology is not None,
        on_cpu=is_cpu_build(),
        sleep_flag=SLEEP_MODE if SLEEP_MODE in command else "",
    )
    if events is not None:
        evidence = f"the server publishes at {events.stream}, as set by --kv-events-config"
        capabilities |= dict.fromkeys((Capability.KV_EVENTS, Capability.EVENT_RESTARTS), Support(True, evidence))
    probed = msgspec.structs.replace(probed, shape=shape, capabilities=capabilities)
    stream = None if events is None else EventStream(events, hash_rule(probed.cache_config, shown.get(HASH_SEED)))
    return ServerEngine(name="vllm", client=client, probed=probed, config=config, process=process, stream=stream)


def plugins(options: VllmOptions) -> tuple[Path, ...]:
    """Write Coldproof's plugins for this server, and return their folders."""
    folder = (options.files or options.log).with_suffix(".plugins")
    transfer = (transfer_plugin(folder / "transfer"),) if options.weight_transfer else ()
    return transfer if options.topology is None else (*transfer, digest_plugin(folder / "digests"))


def server_command(options: VllmOptions, port: int, events: Sequence[str] = ()) -> list[str]:
    """Return the command line of the server. It does not use `vllm serve`, which is incomplete in the CPU package."""
    caching = "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching"
    command = ["python", "-m", PAIR if options.prefill_apart else SERVER, "--model", options.model]
    command += ["--served-model-name", "base", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--dtype", default_numbers(options)]
    command += ["--block-size", str(BLOCK), "--max-model-len", "2048"]
    command += ["--enable-prompt-tokens-details", *lora_flags(options), *endpoint_flags()]
    command += content_support.flags(options.arguments)
    command += EXACT_FLAGS if options.exact else ()
    command += pool_flags(generated=options.generated)
    if options.topology is not None:
        command += topology_flags(options.topology, options.changed)
    command += events
    if options.tier is not None and options.prefix_caching:
        command += tier_flags(options.tier, tier_folder(options), options.tier_port)
    command += CHANGED_FLAGS.get(options.changed, ())
    command += TRANSFER_FLAGS if options.weight_transfer else ()
    if options.prefix_caching:
        return [*command, caching, *options.arguments]
    return [*command, *options.arguments, caching]


def pool_flags(*, generated: bool) -> list[str]:
    """Return the flags with the size of the KV pool, of a generated model or a user's."""
    if is_cpu_build():
        if pool_variable(installed_version()):
            return []
        return [POOL_FLAG, GENERATED_CPU_KV_BYTES if generated else CPU_KV_BYTES]
    return ["--gpu-memory-utilization", GPU_SHARE, *([POOL_FLAG, GENERATED_GPU_KV_BYTES] if generated else [])]


def tier_folder(options: VllmOptions) -> Path:
    """Return the folder for a tier that writes files."""
    return options.storage or (options.files or options.log).with_suffix(".tier")


def endpoint_flags() -> list[str]:
    """Return the flag that opens the endpoint for token ids. Older versions have it without a flag, or not at all."""
    return ["--enable-scale-out"] if released_from(installed_version(), CLOSES_AN_ENDPOINT) else []


def default_numbers(options: VllmOptions) -> str:
    """Return the numbers to compute with: float32, or bfloat16 where adapters are computed by vLLM's LoRA kernels."""
    kernels = options.topology is None and is_cuda_build()
    return LORA_NUMBERS[0] if kernels and lora_flags(options) else "float32"


def numbers_hint(command: Sequence[str]) -> str:
    """Return what to change in a command with which vLLM does not start on a GPU, because of adapters in float32.

    Empty for any other command.
    """
    numbers = [command[at + 1] for at, word in enumerate(command[:-1]) if word == "--dtype"]
    numbers += [word.partition("=")[2] for word in command if word.startswith("--dtype=")]
    adapters = [word for word in command if word in ("--enable-lora", "--no-enable-lora")][-1:] == ["--enable-lora"]
    if not (is_cuda_build() and adapters and "float32" in numbers[-1:]):
        return ""
    return (
        "vLLM's LoRA kernels on a GPU take 16-bit numbers only: give --engine-args=--dtype bfloat16, or "
        '--engine-args="--dtype float32 --no-enable-lora" to test without adapters'
    )


def lora_flags(options: VllmOptions) -> list[str]:
    """Return the flags for adapters; none for a model whose vocabulary is too large for them, which would not start."""
    config = Path(options.model) / "config.json"
    facts = msgspec.json.decode(config.read_bytes(), type=ModelConfig) if config.is_file() else ModelConfig()
    if facts.vocab_size > LORA_VOCABULARY:
        return []
    return ["--enable-lora", "--max-loras", "4", "--max-lora-rank", str(options.lora_rank)]


def lora_rank(adapters: Iterable[Path]) -> int:
    """Return the smallest rank that vLLM can be started with for these adapters.

    On a CPU, it multiplies with rows of zeros up to that rank, which takes most of a small model's time.
    """
    ranks = [LORA_RANKS[0]]
    for folder in adapters:
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # the engine refuses an adapter without a valid file
            ranks.append(msgspec.json.decode((folder / "adapter_config.json").read_bytes(), type=AdapterConfig).r)
    return next((rank for rank in LORA_RANKS if rank >= max(ranks)), LORA_RANKS[-1])


def added_environment(*, events: bool = False, exact: bool = False) -> dict[str, str]:
    """Return the variables that are added to the environment of the engine."""
    of_device = (CPU_ENVIRONMENT if is_cpu_build() else {}) | (EXACT_ENVIRONMENT if exact else {})
    return {**ENVIRONMENT, **of_device, **({HASH_SEED: "0"} if events else {})}


def environment(
    cell: Variables = (), *, events: bool = False, exact: bool = False, plugins: tuple[Path, ...] = ()
) -> dict[str, str]:
    """Return the engine's environment: Coldproof's, plus the additions that the user did not set, and PYTHONPATH.

    `cell`: variables of the cell, which replace the user's. `plugins`: folders with entry points for vLLM.
    """
    own = {**added_environment(events=events, exact=exact), SOCKETS: str(socket_folder())}
    return {**own, **current_environment(), **dict(cell), "PYTHONPATH": python_path(*plugins)}


@functools.cache
def socket_folder() -> Path:
    """Return the folder for the sockets of the servers that this process starts: a killed server leaves them."""
    folder = ScratchFolder()
    atexit.register(folder.remove)
    return folder.path


def effective_environment(cell: Variables = (), *, events: bool = False, exact: bool = False) -> dict[str, str]:
    """Return the added variables and the cell's with their effective values: the user may have changed the first."""
    noise = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    own = added_environment(events=events, exact=exact)
    added = {name: os.environ.get(name, value) for name, value in own.items()}
    return added | noise | dict(cell)


def environment_text(variables: dict[str, str]) -> str:
    """Return NAME=value pairs in a stable order."""
    return " ".join(f"{key}={value}" for key, value in sorted(variables.items()))


def check_model(model: str) -> None:
    """Raise EngineStartError for a path without a model, before vLLM spends half a minute on it. Hub names pass."""
    looks_like_path = model.startswith(("/", ".", "~")) or Path(model).exists() or model.count("/") != 1
    if looks_like_path and not (Path(model) / "config.json").is_file():
        raise EngineStartError(f"no model at {model}: --model needs a folder with a config.json, or a hub name")


def wait_ready(client: HttpClient, process: EngineProcess) -> None:
    """Poll /health until it answers. Raises EngineStartError if the process terminates first, or on timeout."""

    def ready() -> bool:
        if not process.running():
            raise EngineStartError(
                f"the engine terminated with exit code {process.exit_code()} before it was ready; the end of its log "
                f"({process.log}):\n{process.tail()}"
            )
        try:
            return client.session().get(f"{client.url}/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False

    started = time.monotonic()
    try:
        tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda answer: not answer),
            stop=tenacity.stop_after_delay(START_SECONDS),
            wait=tenacity.wait_fixed(0.25),
        )(ready)
    except tenacity.RetryError as problem:
        raise EngineStartError(
            f"the engine was not ready after {time.monotonic() - started:.0f} s; the end of its log "
            f"({process.log}):\n{process.tail()}"
        ) from problem
