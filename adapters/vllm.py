"""Spawn vLLM's OpenAI server and talk to it: the default engine, on CPU and on GPU.

The server is started as a user would start it; only the environment that makes small CPU engines bearable is added.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import requests
import tenacity

from adapters.base import Capability, EngineDied, EngineStartError, GroupShape, Support
from adapters.event_socket import EventSocket
from adapters.fingerprint.topology import Topology, flags, group_shapes
from adapters.kv_events import hash_rule
from adapters.noise import VARIABLE
from adapters.openai_http import Wire
from adapters.probes import Probed, probe, provenance_support
from adapters.process import EngineProcess, free_port, port_is_taken
from adapters.redact import redacted
from adapters.server import ServerEngine, Stream
from adapters.tiers import Tier, tier_flags

START_SECONDS = 300.0
BLOCK = 32  # tokens; CPU attention wants multiples of this
ROOT = Path(__file__).resolve().parent.parent
# Spinning OpenMP threads make a busy machine a hundred times slower with models this small.
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "NUMBA_NUM_THREADS": "1",  # n-gram speculation; with more, a busy machine does not even come up
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
}
# vLLM hashes the root of all blocks from it. Where it is not set, older versions draw a root that nobody knows.
HASH_SEED = "PYTHONHASHSEED"
# Several engines of one run share a GPU (the one under test, the oracle, a fresh one to confirm on).
GPU_SHARE = "0.25"


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One server to spawn. `arguments` come last on its command line, so they win."""

    model: str
    prefix_caching: bool = True
    arguments: tuple[str, ...] = ()
    log: Path
    adapter_path: str | None = None
    probed: Probed | None = None  # of an engine just like it: then nothing is asked, and it stays untouched
    port: int | None = None
    most_requests: int | None = None  # what the flags say and no metric does; see EngineShape
    topology: Topology | None = None  # the fingerprint worker's layers; None: a model
    tier: Tier | None = None  # without prefix caching there is none
    groups: tuple[GroupShape, ...] = ()  # what the model's layers are known to need; no metric tells
    events: bool = False  # have it publish KV events


def spawn(options: VllmOptions, *, on_process: Callable[[EngineProcess], None]) -> ServerEngine:
    """Start a server and wait until it answers. `on_process` gets the process at once, so that it can be stopped.

    Raises EngineStartError, with the tail of the log, when it ends or does not become ready in time.
    """
    check_model(options.model)
    if options.port is not None and port_is_taken(options.port):
        raise EngineStartError(f"port {options.port} is in use: choose another in --engine-args, or leave it out")
    port = options.port or free_port()
    events = EventSocket() if options.events else None
    command = server_command(options, port, () if events is None else events.flags)
    process = EngineProcess([sys.executable, *command[1:]], environment(events=options.events), options.log)
    on_process(process)
    wire = Wire(f"http://127.0.0.1:{port}", alive=process.running)
    try:
        wait_ready(wire, process)
        process.remember()
        probed = options.probed or probe(wire, spawned=True, adapter_path=options.adapter_path)
    except EngineDied as problem:
        tail = process.tail()
        stop_both(process, events)
        raise EngineStartError(f"{problem} while it was being probed; the end of its log:\n{tail}") from problem
    except BaseException:
        stop_both(process, events)
        raise
    shown = shown_environment(events=options.events)
    config = {"command": redacted(shlex.join(command)), "environment": words(shown)}
    groups = options.groups if options.topology is None else group_shapes(options.topology, BLOCK)
    shape = msgspec.structs.replace(
        probed.shape,
        block_size=math.lcm(*(group.block for group in groups)) if groups else probed.shape.block_size,
        most_requests=options.most_requests,
        groups=() if probed.shape.uniform else groups,
        failed_load_ends_request=options.tier is not None and options.tier.ends_requests,
    )
    if events is not None:
        heard = Support(True, f"the server publishes at {events.stream}, as --kv-events-config asks for")
        probed = msgspec.structs.replace(probed, capabilities={**probed.capabilities, Capability.KV_EVENTS: heard})
    provenance = {Capability.PROVENANCE: provenance_support(digests=options.topology is not None)}
    probed = msgspec.structs.replace(probed, shape=shape, capabilities={**probed.capabilities, **provenance})
    stream = None if events is None else Stream(events, hash_rule(probed.cache_config, shown.get(HASH_SEED)))
    return ServerEngine(name="vllm", wire=wire, probed=probed, config=config, process=process, stream=stream)


def stop_both(process: EngineProcess, events: EventSocket | None) -> None:
    """End a server that did not come up, and what listened to it."""
    process.stop()
    if events is not None:
        events.close()


def server_command(options: VllmOptions, port: int, events: Sequence[str] = ()) -> list[str]:
    """The command that a person would type. `vllm serve` is avoided: the CPU package does not ship it whole."""
    caching = "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching"
    command = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", options.model]
    command += ["--served-model-name", "base", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enforce-eager", "--dtype", "float32", "--block-size", str(BLOCK), "--max-model-len", "2048"]
    command += ["--enable-prompt-tokens-details", "--enable-lora", "--max-loras", "4", "--max-lora-rank", "64"]
    if not cpu_build():
        command += ["--gpu-memory-utilization", GPU_SHARE]
    if options.topology is not None:
        command += flags(options.topology)
    command += events
    if options.tier is not None and options.prefix_caching:
        command += tier_flags(options.tier, options.log.with_suffix(".tier"))
    if options.prefix_caching:
        return [*command, caching, *options.arguments]
    return [*command, *options.arguments, caching]


def cpu_build() -> bool:
    """Whether the installed vLLM is the CPU package."""
    try:
        importlib.metadata.distribution("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def added_environment(*, events: bool = False) -> dict[str, str]:
    """What is added to the environment that the engine inherits."""
    return {**ENVIRONMENT, **(CPU_ENVIRONMENT if cpu_build() else {}), **({HASH_SEED: "0"} if events else {})}


def environment(*, events: bool = False) -> dict[str, str]:
    """The engine's environment: ours with the additions; what the user set wins. Our own packages can be imported."""
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]
    return {**added_environment(events=events), **os.environ, "PYTHONPATH": os.pathsep.join(path)}


def shown_environment(*, events: bool = False) -> dict[str, str]:
    """What is added to the environment, as the user may have set it otherwise."""
    noise = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
    return {name: os.environ.get(name, value) for name, value in added_environment(events=events).items()} | noise


def words(variables: dict[str, str]) -> str:
    """NAME=value pairs in a stable order."""
    return " ".join(f"{key}={value}" for key, value in sorted(variables.items()))


def check_model(model: str) -> None:
    """Refuse a path that holds no model before half a minute is spent on it. Hub names pass."""
    looks_like_path = model.startswith(("/", ".", "~")) or Path(model).exists() or model.count("/") != 1
    if looks_like_path and not (Path(model) / "config.json").is_file():
        raise EngineStartError(f"no model at {model}: --model wants a folder with a config.json, or a hub name")


def wait_ready(wire: Wire, process: EngineProcess) -> None:
    """Poll /health until it answers. Raises EngineStartError when the process ends first or time runs out."""

    def ready() -> bool:
        if not process.running():
            raise EngineStartError(
                f"the engine ended with code {process.exit_code()} before it was ready; the end of its log "
                f"({process.log}):\n{process.tail()}"
            )
        try:
            return wire.session().get(f"{wire.url}/health", timeout=2).status_code == 200
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
