"""Two KV connectors as a user writes them, with vLLM's interface alone. One omits salts and adapters from its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata

Key = tuple[Any, ...]
Copies = list[tuple[Key, int]]  # (key, block of the pool)


@dataclass
class Transfers(KVConnectorMetadata):
    """The blocks that the worker copies in a step."""

    loads: Copies
    stores: Copies


class HandWritten(KVConnectorBase_V1):
    """A connector that keeps full blocks in memory, under the whole prefix, the salt and the adapter."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.block = vllm_config.cache_config.block_size
        self.requests: dict[str, Any] = {}
        self.first: dict[str, int] = {}  # request -> the number of the first block behind the local hit
        self.stored: set[Key] = set()
        self.loads: Copies = []
        self.memory: dict[Key, list[torch.Tensor]] = {}

    def owner(self, request: Any) -> Key:
        """Return what must be equal apart from the tokens."""
        lora = request.lora_request
        return request.cache_salt, lora and (lora.lora_name, lora.lora_path, lora.load_inplace and lora.lora_int_id)

    def key(self, request: Any, number: int) -> Key:
        """Return the key of the request's block with this number."""
        return (*self.owner(request), *request.all_token_ids[: (number + 1) * self.block])

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Set the scheduler's manager, which has the block tables."""
        self.manager = kv_cache_manager

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the tokens of the stored blocks behind the local hit."""
        first = last = self.first[request.request_id] = num_computed_tokens // self.block
        while (last + 1) * self.block < request.num_tokens and self.key(request, last) in self.stored:
            last += 1
        return (last - first) * self.block, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the loads of a request."""
        self.requests[request.request_id] = request
        first, ids = self.first.pop(request.request_id, 0), blocks.get_block_ids()[0]
        chosen = range(first, first + num_external_tokens // self.block)
        self.loads += [(self.key(request, number), ids[number]) for number in chosen]

    def build_connector_meta(self, scheduler_output: Any) -> Transfers:
        """Return the copies of a step: the planned loads, and stores of the blocks that are full after it."""
        stores: dict[Key, int] = {}
        for name, count in scheduler_output.num_scheduled_tokens.items():
            request, ids = self.requests[name], self.manager.get_block_ids(name)[0]
            for number in range((request.num_computed_tokens + count) // self.block):
                if (key := self.key(request, number)) not in self.stored:
                    stores[key] = ids[number]
        self.stored.update(stores)
        loads, self.loads = self.loads, []
        return Transfers(loads, list(stores.items()))

    def reset_cache(self) -> bool:
        """Forget everything."""
        self.stored.clear()
        return True

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Set the pool's tensors."""
        self.tensors = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        """Copy blocks into the pool."""
        for key, block in self._get_connector_metadata().loads:
            for tensor, layer in zip(self.tensors, self.memory[key], strict=True):
                tensor[block] = layer

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are complete."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """Do nothing: `wait_for_save` copies all layers."""

    def wait_for_save(self) -> None:
        """Copy blocks from the pool."""
        for key, block in self._get_connector_metadata().stores:
            self.memory[key] = [tensor[block].clone() for tensor in self.tensors]


class OmitsOwner(HandWritten):
    """The same connector with a defect: its keys have the tokens alone."""

    def owner(self, request: Any) -> Key:
        """Return an empty key, so that tenants and adapters share blocks."""
        return ()
