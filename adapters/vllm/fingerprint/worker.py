"""The worker class that vLLM loads with `--worker-cls`, instead of a worker with a model.

It implements every method that the engine core calls. It refuses unsupported configurations with a one-line error.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import (
    ensure_kv_transfer_initialized,
    ensure_kv_transfer_shutdown,
    get_kv_transfer_group,
    has_kv_transfer_group,
)
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker import gpu_worker
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from coldproof.adapters.common.weights_digest import weights_digest
from coldproof.adapters.protocol.provenance import NEVER_WRITTEN
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.vllm.fingerprint.connectors.simple_offload import use_host_memory
from coldproof.adapters.vllm.fingerprint.draft_model import EAGLE, METHODS, MTP, DraftModel, has_draft_model
from coldproof.adapters.vllm.fingerprint.images import keep_digests
from coldproof.adapters.vllm.fingerprint.kv_slots import LayerSlots
from coldproof.adapters.vllm.fingerprint.kv_specs import DRAFT_LAYER, draft_layers, layer_specs, pool_bytes
from coldproof.adapters.vllm.fingerprint.lora import Loras
from coldproof.adapters.vllm.fingerprint.model_step import Runner
from coldproof.adapters.vllm.fingerprint.topology import (
    CHANGED,
    FULL_ATTENTION,
    OPTIONS,
    STATES_AT_BLOCK_ENDS,
    Topology,
    has_states,
    read_topology,
)
from coldproof.adapters.vllm.fingerprint.weights import (
    DISCARDED,
    ModelOfFiles,
    runner_without_lora_state,
    transfer_engine,
    transfers_weights,
)
from coldproof.adapters.vllm.releases import allocated_kv_cache, note_block_sizes
from coldproof.adapters.vllm.weight_loading import NoWeightsError

DIFFERENCE = 1000  # what is different about an engine counts as so many updates of its weights
POISON_BYTE = NEVER_WRITTEN & 0xFF
# The tasks of a model with layers for tokens, once it is converted to one for vectors.
TASKS = {"embed": ("embed", "token_embed"), "classify": ("classify", "token_classify")}


class UnsupportedError(ValueError):
    """The fingerprint worker does not support this configuration or operation."""


@transfers_weights
class FingerprintWorker(WorkerBase):
    """One worker process on the CPU. Raises UnsupportedError for parallelism and heads that draft."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **named: Any) -> None:
        super().__init__(vllm_config, *args, **named)
        check_config(vllm_config)
        keep_digests()
        options = vllm_config.additional_config.get(OPTIONS, {})
        self.topology = read_topology(options["topology"]) if "topology" in options else FULL_ATTENTION
        self.changed = EngineChange(options.get(CHANGED, EngineChange.NOTHING))
        self.layers = layer_specs(self.topology, vllm_config.cache_config.block_size)
        check_states(self.topology, vllm_config)
        if has_draft_model(vllm_config):
            check_draft_model(self.topology)
            self.layers |= draft_layers(self.layers, vllm_config.cache_config.block_size)
        self.loras = Loras(vllm_config.lora_config) if vllm_config.lora_config else None
        self.kv_caches: dict[str, torch.Tensor] = {}
        self.runner: Runner | None = None
        self.model_at_start: str = vllm_config.model_config.model
        self.weights_at_start: str | None = None  # their digest, once it was needed
        self.model = ModelOfFiles(self.load_folder)
        self.model_runner = runner_without_lora_state()
        self.weight_transfer_engine: Any = None
        self._weight_update_active = self._weight_update_is_draft = False

    def init_device(self) -> None:
        """Join a process group of size one, which connectors need."""
        self.device = torch.device("cpu")
        method = self.distributed_init_method
        gpu_worker.init_worker_distributed_environment(self.vllm_config, self.rank, method, self.local_rank, "gloo")

    def load_model(self, **_: Any) -> None:
        """Create the backend for weight transfer, if there is one. There is no model to be loaded."""
        self.weight_transfer_engine = transfer_engine(self.vllm_config, self.device, self.model)

    def get_model(self) -> Any:
        """Return what stands for the model."""
        return self.model

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Return text generation or, for a model that is served for its vectors, its pooling tasks."""
        if self.model_config.runner_type != "pooling":
            return ("generate",)
        return TASKS[self.model_config.convert_type]

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Return the layout that vLLM chooses for a CPU."""
        return ["LBNHC"]

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """Return the topology as one spec per layer."""
        return {name: spec for name, (_, spec) in self.layers.items()}

    def determine_available_memory(self) -> int:
        """Return the bytes of the pool: enough for several requests of maximum length.

        vLLM's usual share of the memory would be millions of these small blocks. --num-gpu-blocks-override changes it.
        """
        return pool_bytes(self.get_kv_cache_spec(), self.vllm_config)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the pool in vLLM's layout, fill it with POISON_BYTE, and register it with the connector."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        note_block_sizes(self.cache_config, kv_cache_config)
        if self.vllm_config.kv_transfer_config is not None:
            use_host_memory()
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        self.kv_caches = allocated_kv_cache(self.cache_config, kv_cache_config, torch)
        self.poison()
        groups = enumerate(kv_cache_config.kv_cache_groups)
        group_of = {name: (i, int(group.kv_cache_spec.block_size)) for i, group in groups for name in group.layer_names}
        numbers = {name: i for i, name in enumerate(self.layers)}
        slots = {
            name: LayerSlots(numbers[name], self.layers[name][0], *group_of[name], tensor)
            for name, tensor in self.kv_caches.items()
        }
        if has_kv_transfer_group():
            # Some connectors look the layers up in the forward context, for example ExampleConnector.
            context = self.vllm_config.compilation_config.static_forward_context
            context.update({name: SimpleNamespace(kv_cache=tensor) for name, tensor in self.kv_caches.items()})
            get_kv_transfer_group().register_kv_caches(self.kv_caches)
        drafts = DraftModel(
            {name: slots.pop(name) for name in list(slots) if name.startswith(DRAFT_LAYER)},
            ahead=int(has_draft_model(self.vllm_config) and self.vllm_config.speculative_config.method in (EAGLE, MTP)),
        )
        self.runner = Runner(self.vllm_config, kv_cache_config.num_blocks, self.kv_caches, slots, drafts, self.loras)
        self.runner.version = list(EngineChange).index(self.changed) * DIFFERENCE
        self.runner.weights = None if self.changed is EngineChange.NOTHING else self.changed.value

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Return zero seconds: there is nothing to compile."""
        return CompilationTimes(0.0, 0.0)

    def update_max_model_len(self, max_model_len: int) -> None:
        """Set the maximum length that vLLM fitted to the pool."""
        self.model_config.max_model_len = max_model_len

    def update_config(self, overrides: dict[str, Any]) -> None:
        """Do nothing: no option can change after the start."""

    def execute_model(self, scheduler_output: Any) -> ModelRunnerOutput | None:
        """Execute a step. Return None if vLLM must call `sample_tokens` next."""
        return self.started_runner().execute(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> ModelRunnerOutput:
        """Return the tokens of the executed step."""
        return self.started_runner().sample(grammar_output)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Return draft tokens for the requests that got tokens in the last step."""
        runner = self.started_runner()
        drafts, runner.drafts = runner.drafts, None
        return drafts

    def take_wrong_reads(self) -> list[dict[str, Any]]:
        """Return and remove the wrong reads as dictionaries: the first one of each request, with the writer."""
        runner = self.started_runner()
        taken, runner.wrong_reads = runner.wrong_reads, []
        return [msgspec.to_builtins(one) for one in taken]

    def image_counts(self) -> dict[str, int]:
        """Return the counters of `Metrics` about images."""
        encoder = self.started_runner().encoder
        return {"cut_images": encoder.cut, "preempted_images": encoder.preempted}

    def started_runner(self) -> Runner:
        """Return the runner, which exists once the pool is allocated."""
        assert self.runner is not None
        return self.runner

    def execute_dummy_batch(self) -> None:
        """Do nothing: there are no other workers to synchronise with."""

    def reset_encoder_cache(self) -> None:
        """Empty the encoder cache."""
        self.started_runner().encoder.outputs.clear()

    def get_kv_connector_handshake_metadata(self) -> dict[int, Any] | None:
        """Return the connector's handshake metadata, by rank; None if there is none."""
        metadata = get_kv_transfer_group().get_handshake_metadata() if has_kv_transfer_group() else None
        return None if metadata is None else {0: metadata}

    def get_simple_cpu_offload_num_cpu_blocks(self) -> int | None:
        """Return the host blocks of a SimpleCPUOffloadConnector, as vLLM's own worker does. vLLM 0.33 asks for it."""
        blocks: int | None = gpu_worker.Worker.get_simple_cpu_offload_num_cpu_blocks(self)
        return blocks

    def get_cache_block_size_bytes(self) -> int:
        """Return the bytes of one block in all layers."""
        return sum(spec.page_size_bytes for _, spec in self.layers.values())

    def reload_weights(self, weights_iterator: Any = None, weights_path: str | None = None, **_: Any) -> None:
        """Read the weights in a folder, by default the model's. All digests that are computed from now on follow from
        their content. Raises UnsupportedError for weights that are no files.
        """
        if weights_iterator is not None:
            raise UnsupportedError("the fingerprint worker reads weights from files only")
        self.load_folder(Path(weights_path or self.model_config.model))

    def load_folder(self, folder: Path) -> None:
        """Read the weights in a folder. Raises NoWeightsError if it has none."""
        try:
            content = weights_digest(folder)
        except OSError as problem:
            raise NoWeightsError(str(problem)) from problem
        runner = self.started_runner()
        runner.version += 1
        runner.weights = None if content == self.start_weights() else content

    def start_weights(self) -> str:
        """Return the digest of the weights with which the engine was started."""
        if self.weights_at_start is None:
            self.weights_at_start = weights_digest(Path(self.model_at_start))
        return self.weights_at_start

    def compute_weight_checksums(self) -> dict[str, str]:
        """Return the digest of the weights that all digests follow from. A server refuses equal names of two ranks."""
        replica = getattr(self.parallel_config, "data_parallel_index", 0)  # older releases have none
        return {f"dp{replica}:rank{self.rank}:weights": self.started_runner().weights or self.start_weights()}

    def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter. Raises UnsupportedError if LoRA is not enabled."""
        if self.loras is None:
            raise UnsupportedError("LoRA is not enabled")
        return self.loras.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """Remove an adapter. Return whether it was loaded."""
        return self.loras is not None and self.loras.remove(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        """Protect an adapter from eviction. Return False if LoRA is not enabled."""
        return self.loras is not None and self.loras.pin(lora_id)

    def list_loras(self) -> set[int]:
        """Return the numbers of the loaded adapters."""
        return set(self.loras.loaded) if self.loras is not None else set()

    def sleep(self, level: int = 1) -> None:
        """Discard all KV, as a GPU does from level 1 on. At level 2, also forget the weights: what is computed before
        others are loaded is wrong.
        """
        self.poison()
        if level > 1:
            self.started_runner().weights = DISCARDED

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Do nothing: the memory is still there."""

    def poison(self) -> None:
        """Fill the pool with POISON_BYTE."""
        for tensor in self.kv_caches.values():
            tensor.untyped_storage().fill_(POISON_BYTE)

    def synchronize_device(self) -> None:
        """Do nothing: each step is complete when it returns."""

    def reset_mm_cache(self) -> None:
        """Do nothing: the processor's cache is not in the worker."""

    def shutdown(self) -> None:
        """Shut the connector down."""
        ensure_kv_transfer_shutdown()


def check_config(config: VllmConfig) -> None:
    """Raise UnsupportedError for configurations that this worker cannot emulate."""
    method = config.speculative_config.method if config.speculative_config is not None else "ngram"
    refusals = {
        "does not support tensor, pipeline or context parallelism": config.parallel_config.world_size > 1,
        "does not support async scheduling: add --no-async-scheduling": config.scheduler_config.async_scheduling,
        "pools with --convert embed or classify only": not is_supported(config.model_config),
        f"supports the speculative methods {', '.join(METHODS)} only, not {method!r}": method not in METHODS,
        "does not support encoder-decoder models": config.model_config.is_encoder_decoder,
    }
    for reason, applies in refusals.items():
        if applies:
            raise UnsupportedError(f"the fingerprint worker {reason}")


def is_supported(model: Any) -> bool:
    """Return whether a model generates tokens, or is converted to one whose vectors this worker computes."""
    return model.runner_type == "generate" or (model.runner_type == "pooling" and model.convert_type in TASKS)


def check_draft_model(topology: Topology) -> None:
    """Raise UnsupportedError where a draft model, whose blocks are those of the other layers, cannot be emulated."""
    if len({row.block for row in topology}) > 1:
        raise UnsupportedError("the fingerprint worker has a draft model only with blocks of one size")


def check_states(topology: Topology, config: VllmConfig) -> None:
    """Raise UnsupportedError for drafts, after which a state would have to be kept for each drafted token, and if vLLM
    would not end its chunks where the states of this topology are stored.

    From 0.33 on, a server ignores --mamba-cache-mode, because it takes the mode from the model's class.
    """
    cache = config.cache_config
    if has_states(topology) and config.speculative_config is not None:
        raise UnsupportedError("the fingerprint worker has no layers with a state with speculative decoding")
    if has_states(topology) and cache.enable_prefix_caching and cache.mamba_cache_mode != STATES_AT_BLOCK_ENDS:
        raise UnsupportedError(
            "the fingerprint worker's layers with a state need --mamba-cache-mode align, which a server of this vLLM "
            "ignores: run them with --engine vllm-inproc"
        )
