"""Second KV tiers for vLLM, as data for its option `--kv-transfer-config`.

Most connectors are vLLM's own. Some need a GPU, but only for copies: fingerprint/connectors/ replaces these copies.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import Support
from coldproof.adapters.vllm.flags import split_flag

CONNECTORS_PACKAGE = "coldproof.adapters.vllm.fingerprint.connectors"
FOLDER = "(folder of the engine)"  # a placeholder for a folder that only this engine uses
PORT = "(port of the engine)"  # a placeholder for a port that only this engine uses
FAILED_LOADS = "failed_loads"  # the key in the statistics of FailingConnector
OFFLOADED_BYTES = 2**20
PAGE = 4096  # bytes
# Of host memory before files, in blocks of the fingerprint worker: more than a pool of 16, and less than what most
# workloads store, so that most loads come from files.
BEFORE_FILES, FEW_BEFORE_FILES = 18, 6  # the second: less than one long prompt has
KEPT_BLOCKS = 10_000  # the default capacity of Coldproof's connector
TRANSFER_FLAG = "--kv-transfer-config"
GIVEN, NOT_USED = "given", "not-used"  # of a cell: the tier is the one in the user's flag, or that one is left out
LMCACHE_PORT, LMCACHE_START = "lmcache.mp.port", "lmcache.mp.autostart"  # options of LMCache's connector
LMCACHE_FILES = json.dumps({"type": "fs", "base_path": FOLDER})
USERS_FOLDER, USERS_PORT = "{folder}", "{port}"  # what a user writes for FOLDER and PORT


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A connector with its options. `ends_requests`: a request ends with an error when one of its loads fails.

    `more`: other keys of vLLM's configuration.
    """

    connector: str
    module: str | None = None
    options: dict[str, Any] = {}
    parts: tuple[Tier, ...] = ()
    ends_requests: bool = False
    more: dict[str, Any] = {}


OFFLOAD = Tier(
    connector="OffloadingConnector",
    options={
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": f"{CONNECTORS_PACKAGE}.offloading",
        "cpu_bytes_to_use": OFFLOADED_BYTES,
        "offload_prompt_only": False,
    },
)
FILES = Tier(
    connector="OffloadingConnector",
    options={
        "spec_name": "HostTieringSpec",
        "spec_module_path": f"{CONNECTORS_PACKAGE}.tiering",
        "cpu_bytes_to_use": OFFLOADED_BYTES,
        "offload_prompt_only": False,
        "secondary_tiers": [{"type": "fs", "root_dir": FOLDER, "n_read_threads": 1, "n_write_threads": 1}],
    },
)
# Coldproof's own connector; see fingerprint/connectors/failing.py for its options.
RELIABLE = Tier(connector="FailingConnector", module=f"{CONNECTORS_PACKAGE}.failing")
LMCACHE = "LMCacheMPConnector"
SIMPLE = Tier(connector="SimpleCPUOffloadConnector", options={"cpu_bytes_to_use": OFFLOADED_BYTES})


def with_options(tier: Tier, **options: Any) -> Tier:
    """Return the same connector with additional or changed options."""
    return msgspec.structs.replace(tier, options={**tier.options, **options})


def lmcache(*server_flags: str, chunk: int, gigabytes: str = "0.0625") -> Tier:
    """Return LMCache in its multi-process mode: the connector starts LMCache's server, with chunks of `chunk` tokens.

    On a CPU the worker copies between its pool and the server (`engine_driven`); the server's default is for CUDA.
    """
    memory = ("--l1-size-gb", gigabytes, "--no-l1-use-lazy", "--eviction-policy", "LRU")
    quiet = ("--disable-observability", "--http-port", "0")
    words = ("--chunk-size", str(chunk), "--supported-transfer-mode", "engine_driven", *memory, *quiet, *server_flags)
    options = {LMCACHE_PORT: PORT, LMCACHE_START: True, f"{LMCACHE_START}.server_args": shlex.join(words)}
    return Tier(connector=LMCACHE, options=options)


FAILING = with_options(RELIABLE, failing=True)
SHARED_MEMORY = lmcache("--shm-name", f"coldproof-{PORT}", chunk=64)
BEHIND_FILES = ("--l2-adapter", LMCACHE_FILES)
# In seconds. By default an engine asks every 10 whether the server answers, and waits 300 for the answer to a call.
LMCACHE_WATCHED = {"lmcache.mp.heartbeat_interval": 1, "lmcache.mp.mq_timeout": 5}
TIERS = {
    "offload": OFFLOAD,
    "offload-described": with_options(OFFLOAD, self_describing_kv_events=True),
    # Without a description, an event names the last block of a chunk alone.
    "offload-small": with_options(OFFLOAD, cpu_bytes_to_use=20 * PAGE, block_size=64, self_describing_kv_events=True),
    "files": with_options(FILES, cpu_bytes_to_use=BEFORE_FILES * PAGE),
    "files-few": with_options(FILES, cpu_bytes_to_use=FEW_BEFORE_FILES * PAGE),
    "files-of-a-model": FILES,
    "files-of-prompts": with_options(FILES, offload_prompt_only=True),
    "simple": SIMPLE,
    "simple-lazy": with_options(SIMPLE, lazy_offload=True),
    "example": Tier(connector="ExampleConnector", options={"shared_storage_path": FOLDER}),
    "multi-of-one": Tier(connector="MultiConnector", parts=(OFFLOAD,)),
    "multi": Tier(connector="MultiConnector", parts=(OFFLOAD, SIMPLE)),
    "kept": RELIABLE,
    "kept-late": with_options(RELIABLE, asynchronous=True),
    "failing": FAILING,
    "failing-late": with_options(FAILING, asynchronous=True),
    "failing-ends": msgspec.structs.replace(FAILING, ends_requests=True),
    "lmcache": lmcache(chunk=32),
    "lmcache-chunks": SHARED_MEMORY,
    "lmcache-watched": with_options(lmcache(chunk=32), **LMCACHE_WATCHED),
    "lmcache-chunks-watched": with_options(SHARED_MEMORY, **LMCACHE_WATCHED),
    "lmcache-files": lmcache(*BEHIND_FILES, chunk=32, gigabytes="0.0002"),
    # For about 30 chunks of a model: memory must hold all that one request loads.
    "lmcache-files-watched": with_options(lmcache(*BEHIND_FILES, chunk=32, gigabytes="0.002"), **LMCACHE_WATCHED),
}


def tier_and_rest(name: str | None, arguments: tuple[str, ...]) -> tuple[Tier | None, tuple[str, ...]]:
    """Return the second tier of an engine, and its arguments without the flag that describes it.

    `name`: the cell's tier. A flag of the user's comes first, so that the engine without a prefix cache, which gives
    the cold answers, has no tier either. Raises ValueError if the cell needs that flag and it is missing.
    """
    given, rest = split_flag(arguments, TRANSFER_FLAG)
    if name == NOT_USED:
        return None, rest
    if given is not None:
        return given_tier(given), rest
    if name == GIVEN:
        raise ValueError(
            f"this cell tests your connector: `coldproof connector`, or --engine-args with {TRANSFER_FLAG}"
        )
    return (None if name is None else TIERS[name]), rest


def given_tier(text: str) -> Tier:
    """Return the tier of a `--kv-transfer-config`. Raises ValueError if it is no JSON object with a connector."""
    try:
        text = text.replace(USERS_FOLDER, FOLDER).replace(USERS_PORT, PORT)
        config = msgspec.json.decode(text, type=dict[str, Any])
        return Tier(
            connector=config.pop("kv_connector"),
            module=config.pop("kv_connector_module_path", None),
            options=config.pop("kv_connector_extra_config", {}),
            ends_requests=config.pop("kv_load_failure_policy", "") == "fail",
            more=config,
        )
    except (msgspec.DecodeError, KeyError) as problem:
        raise ValueError(f"{TRANSFER_FLAG}: expected a JSON object with kv_connector ({problem})") from problem


# Of the connectors for which `tier_blocks` knows what is kept: those that store what an answer fills as well.
KEEPING_ANSWERS = (OFFLOAD.connector, SIMPLE.connector)


def tier_blocks(transfer: Any, *, block_bytes: int) -> int | None:
    """Return how many blocks a connector keeps by its `kv_transfer_config`; None if it promises nothing known here.

    OffloadingConnector stores each block in a multiple of 4,096 bytes (CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT). Of
    chunks of several blocks (`block_size`), it loads none that the pool has in part. An option that none of our tiers
    has may change what is kept, too (vLLM's `store_threshold`, `cpu_bytes_to_use_per_rank`, `lazy_offload`).
    """
    options = transfer.kv_connector_extra_config
    spec = (transfer.kv_connector, options.get("spec_name"))
    if spec == (OFFLOAD.connector, OFFLOAD.options["spec_name"]) and set(options) == set(OFFLOAD.options):
        return int(options["cpu_bytes_to_use"]) // (-(-block_bytes // PAGE) * PAGE)
    if transfer.kv_connector == SIMPLE.connector and set(options) == set(SIMPLE.options):
        return int(options["cpu_bytes_to_use"]) // block_bytes
    if transfer.kv_connector == RELIABLE.connector and not options.get("failing"):
        return int(options.get("blocks", KEPT_BLOCKS))
    return None


def stores_before_eviction(*connectors: dict[str, Any]) -> bool:
    """Return whether one of the connectors with these options stores blocks shortly before their eviction.

    SimpleCPUOffloadConnector holds them meanwhile, and frees them behind newer ones (`lazy_offload`,
    `SimpleCPUOffloadScheduler._prepare_lazy_store_specs`).
    """
    parts = [part.get("kv_connector_extra_config", {}) for one in connectors for part in one.get("connectors", ())]
    return any(one.get("lazy_offload") for one in (*connectors, *parts))


def persistence(tier: Tier | None) -> Support:
    """Return whether the tier has a folder, in which KV outlives the engine."""
    if tier is None or FOLDER not in json.dumps(tier.options):
        return Support(False, "no tier stores KV in a folder")
    return Support(True, f"{tier.connector} stores KV in a folder")


def tier_flags(tier: Tier, folder: Path, port: int) -> list[str]:
    """Return the flags with which a vLLM engine uses the tier.

    `folder`: for connectors that write files. `port`: for connectors with a server.
    """
    policy = "fail" if tier.ends_requests else "recompute"
    return [TRANSFER_FLAG, json.dumps({**connector_config(tier, folder, port), "kv_load_failure_policy": policy})]


def connector_config(tier: Tier, folder: Path, port: int) -> dict[str, Any]:
    """Return a connector in the form of vLLM's configuration."""
    options: dict[str, Any] = json.loads(json.dumps(tier.options).replace(FOLDER, str(folder)).replace(PORT, str(port)))
    if tier.parts:
        options["connectors"] = [connector_config(part, folder, port) for part in tier.parts]
    module = {} if tier.module is None else {"kv_connector_module_path": tier.module}
    known = {"kv_connector": tier.connector, "kv_role": "kv_both", **module, "kv_connector_extra_config": options}
    return {**known, **tier.more}
