"""The worker that vLLM loads in place of one with a model, by `--worker-cls` and this class's name.

It answers every call that the engine core makes of a worker; what it cannot do it refuses with one line.
"""

from __future__ import annotations

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
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
from vllm.v1.worker.utils import allocate_kv_cache
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from adapters.fingerprint.loras import Loras
from adapters.fingerprint.runner import Runner
from adapters.fingerprint.slots import LayerSlots
from adapters.fingerprint.specs import layer_specs, pool_bytes
from adapters.fingerprint.tier.held import HeldConnector
from adapters.fingerprint.tier.simple import use_host_memory
from adapters.fingerprint.topology import OPTIONS, PLAIN, read
from adapters.provenance import NEVER_WRITTEN

POISON_BYTE = NEVER_WRITTEN & 0xFF


class Refused(ValueError):
    """A configuration that a worker without a model cannot stand for."""


class FingerprintWorker(WorkerBase):
    """One process, one device: the CPU. Raises Refused for parallelism, pooling and drafts by a model."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **named: Any) -> None:
        super().__init__(vllm_config, *args, **named)
        check(vllm_config)
        options = vllm_config.additional_config.get(OPTIONS, {})
        self.topology = read(options["topology"]) if "topology" in options else PLAIN
        self.layers = layer_specs(self.topology, vllm_config.cache_config.block_size)
        self.loras = Loras(vllm_config.lora_config) if vllm_config.lora_config else None
        self.kv_caches: dict[str, torch.Tensor] = {}
        self.runner: Runner | None = None
        self.held = HeldConnector()

    def init_device(self) -> None:
        """Join a process group of one, which connectors ask about."""
        self.device = torch.device("cpu")
        method = self.distributed_init_method
        init_worker_distributed_environment(self.vllm_config, self.rank, method, self.local_rank, "gloo")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """There is none."""

    def get_model(self) -> Any:
        """Nothing to inspect. Raises Refused."""
        raise Refused("the fingerprint worker has no model")

    def get_supported_tasks(self) -> tuple[str, ...]:
        """Text generation only."""
        return ("generate",)

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Whatever vLLM would choose for a CPU."""
        return ["LBNHC"]

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """The topology, a spec a layer."""
        return {name: spec for name, (_, spec) in self.layers.items()}

    def determine_available_memory(self) -> int:
        """Bytes for the pool: enough for several requests of full length. A model's share of the memory would be
        millions of these small blocks; --num-gpu-blocks-override says how many there are to be.
        """
        return pool_bytes(self.get_kv_cache_spec(), self.vllm_config)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the pool as vLLM lays it out, poison it, and hand it to a connector."""
        with self.held.in_place():
            self.allocate(kv_cache_config)

    def allocate(self, kv_cache_config: KVCacheConfig) -> None:
        """The same with this worker's connector in place."""
        self.cache_config.num_gpu_blocks = kv_cache_config.num_blocks
        self.cache_config.hash_block_size = kv_cache_config.hash_block_size
        self.cache_config.cache_hit_alignment_tokens = kv_cache_config.cache_hit_alignment_tokens
        if self.vllm_config.kv_transfer_config is not None:
            use_host_memory()
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        layout = self.cache_config.get_resolved_kv_cache_layout()
        self.kv_caches = allocate_kv_cache(kv_cache_config, torch.device("cpu"), layout)
        for tensor in self.kv_caches.values():
            tensor.untyped_storage().fill_(POISON_BYTE)
        groups = {name: i for i, group in enumerate(kv_cache_config.kv_cache_groups) for name in group.layer_names}
        numbers = {name: i for i, name in enumerate(self.layers)}
        slots = {
            name: LayerSlots(
                numbers[name],
                self.layers[name][0],
                groups[name],
                block_size(kv_cache_config, groups[name]),
                tensor,
            )
            for name, tensor in self.kv_caches.items()
        }
        if has_kv_transfer_group():
            show_layers(self.vllm_config, self.kv_caches)
            get_kv_transfer_group().register_kv_caches(self.kv_caches)
        self.runner = Runner(self.vllm_config, kv_cache_config.num_blocks, self.kv_caches, slots, self.loras)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing to compile."""
        return CompilationTimes(0.0, 0.0)

    def update_max_model_len(self, max_model_len: int) -> None:
        """Take over what vLLM fitted to the pool."""
        self.model_config.max_model_len = max_model_len

    def update_config(self, overrides: dict[str, Any]) -> None:
        """Nothing here is configured after the start."""

    def execute_model(self, scheduler_output: Any) -> ModelRunnerOutput | None:
        """Read, write and compute; None when tokens are to be sampled next."""
        with self.held.in_place():
            return self.running().execute(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> ModelRunnerOutput:
        """The tokens of the step that was executed."""
        return self.running().sample(grammar_output)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """Drafts for the requests that the last step answered."""
        return self.running().take_drafts()

    def take_wrong_reads(self) -> list[dict[str, Any]]:
        """What was read wrong since this was last asked, the first of each request, with whose it was."""
        return [msgspec.to_builtins(one) for one in self.running().take_wrong_reads()]

    def running(self) -> Runner:
        """The runner, which is there once the pool is."""
        assert self.runner is not None
        return self.runner

    def execute_dummy_batch(self) -> None:
        """Nothing to keep in step with."""

    def reset_encoder_cache(self) -> None:
        """There is none."""

    def get_kv_connector_handshake_metadata(self) -> dict[int, Any] | None:
        """What the connector wants to tell others."""
        if self.held.connector is None:
            return None
        metadata = self.held.connector.get_handshake_metadata()
        return None if metadata is None else {0: metadata}

    def get_cache_block_size_bytes(self) -> int:
        """Bytes of a block in all layers."""
        return sum(spec.page_size_bytes for _, spec in self.layers.values())

    def reload_weights(self, *_: Any, **__: Any) -> None:
        """New weights: what is computed from here on is another version's."""
        self.running().version += 1

    def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter. Raises Refused where none may be."""
        if self.loras is None:
            raise Refused("LoRA is not enabled")
        return self.loras.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """Drop an adapter."""
        return self.loras is not None and self.loras.remove(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter."""
        return self.loras is not None and self.loras.pin(lora_id)

    def list_loras(self) -> set[int]:
        """The adapters that are loaded."""
        return set(self.loras.loaded) if self.loras is not None else set()

    def sleep(self, *_: Any, **__: Any) -> None:
        """Raises Refused: there is no memory to give back."""
        raise Refused("the fingerprint worker cannot sleep")

    def shutdown(self) -> None:
        """End the connector."""
        with self.held.in_place():
            ensure_kv_transfer_shutdown()


def block_size(config: KVCacheConfig, group: int) -> int:
    """Tokens in a block of a group, as vLLM settled it."""
    return int(config.kv_cache_groups[group].kv_cache_spec.block_size)


def show_layers(config: VllmConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Put the layers where some connectors look for them (ExampleConnector: the forward context's layers)."""
    context = config.compilation_config.static_forward_context
    context.update({name: SimpleNamespace(kv_cache=tensor) for name, tensor in tensors.items()})


def check(config: VllmConfig) -> None:
    """Raise Refused for what this worker cannot stand for."""
    parallel, speculative = config.parallel_config, config.speculative_config
    if parallel.world_size > 1:
        raise Refused("the fingerprint worker runs alone: no tensor, pipeline or context parallelism")
    if config.scheduler_config.async_scheduling:
        raise Refused("the fingerprint worker answers each step before the next: --no-async-scheduling")
    if config.model_config.runner_type != "generate":
        raise Refused("the fingerprint worker generates text and does nothing else")
    if speculative is not None and speculative.method != "ngram":
        raise Refused(f"the fingerprint worker drafts for method 'ngram' only, not for {speculative.method!r}")
    if config.model_config.is_encoder_decoder:
        raise Refused("the fingerprint worker has no encoder")
