"""Second KV tier: keys of the tier, and loads that read or write the wrong place."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module, name_and_path
from coldproof.adapters.vllm.faults.patching import acted, after, around

FAULTS, fault = collector("tiers")

OFFLOAD = ("tier-offload",)
CONNECTOR = "distributed.kv_transfer.kv_connector.v1.offloading.scheduler"


def change_keys(
    patch: Patch, rest: Callable[[Any], object], forgotten: Callable[[Any], bool], *, whole_prefix: bool = True
) -> None:
    """Compute the offloading connector's keys from the tokens and `rest(request)`.

    `forgotten(request)` says whether that leaves out something of this request.
    """
    offloading = module("v1.kv_offload.base")

    @around(patch, module(CONNECTOR).RequestOffloadState, "update_offload_keys")
    def update(original: Any, state: Any) -> None:
        known = [len(group.offload_keys) for group in state.group_states]
        original(state)
        for config, group, first in zip(state.config.kv_group_configs, state.group_states, known, strict=True):
            for i in range(first, len(group.offload_keys)):
                end = (i + 1) * config.tokens_per_chunk
                tokens = list(state.req.all_token_ids[0 if whole_prefix else end - config.tokens_per_chunk : end])
                digest = hashlib.sha256(repr((tokens, rest(state.req))).encode()).digest()
                key = offloading.make_offload_key(digest, config.group_idx)
                group.offload_keys[i] = key
                state.req_context.set_offload_key_position(key, end)
                if forgotten(state.req):
                    acted()


def adapter(request: Any) -> tuple[str, str] | None:
    """Return the name and the path of a request's adapter; None for the base model."""
    return None if request.lora_request is None else name_and_path(request.lora_request)


@fault("TIER-3", stands_for="LMCache#2878, vllm PR#39837", cells=OFFLOAD)
def tier_keys_lack_the_salt(patch: Patch) -> None:
    """The tier's key has tokens and adapter only: tenants with different salts load each other's blocks."""
    change_keys(patch, adapter, lambda request: bool(request.cache_salt))


@fault("TIER-3", stands_for="vllm#44250, LMCache#2961", cells=OFFLOAD)
def tier_keys_lack_the_adapter(patch: Patch) -> None:
    """The tier's key has tokens and salt only: the base model loads an adapter's blocks."""
    change_keys(patch, lambda request: request.cache_salt, lambda request: request.lora_request is not None)


@fault(
    "TIER-3",
    stands_for="sglang#26792, vllm#42125",
    cells=OFFLOAD,
    rare="only for an adapter that is loaded again under its name",
)
def tier_keys_lack_the_reload(patch: Patch) -> None:
    """The tier's key has only the name of an adapter: after a reload, blocks of an earlier content are loaded."""

    def name(request: Any) -> object:
        return request.cache_salt, None if request.lora_request is None else request.lora_request.lora_name

    change_keys(patch, name, lambda request: request.lora_request is not None)


@fault("TIER-3", "TIER-1", stands_for="LMCache#4385", cells=OFFLOAD, rare="only for equal blocks after different ones")
def tier_keys_lack_the_parent(patch: Patch) -> None:
    """The tier's key has only the block's own tokens, not the tokens before them."""
    change_keys(patch, lambda request: (request.cache_salt, adapter(request)), lambda _: True, whole_prefix=False)


def change_loads(patch: Patch, change: Callable[[list[int]], list[int]]) -> None:
    """Make a load read `change(chunks)` from host memory instead of the requested chunks."""

    @around(patch, module("v1.kv_offload.cpu.manager").CPUOffloadingManager, "prepare_load")
    def prepare(original: Any, this: Any, keys: Any, *rest: Any, **kwargs: Any) -> Any:
        spec = original(this, keys, *rest, **kwargs)
        requested = [int(one) for one in spec.block_ids]
        read = change(requested)
        if read != requested:
            acted()
        return type(spec)(read)


@fault("TIER-1", stands_for="sglang#39830", cells=OFFLOAD)
def loads_are_a_block_off(patch: Patch) -> None:
    """A load of several blocks gives each block the content of the next one."""
    change_loads(patch, lambda chunks: [*chunks[1:], chunks[0]])


@fault("TIER-1", stands_for="sglang#27504", cells=OFFLOAD, rare="only every seventh load")
def every_seventh_load_reads_another_block(patch: Patch) -> None:
    """The first block of every seventh load is read from where the previous load ended."""
    count = itertools.count(1)
    last: list[int] = []

    def change(chunks: list[int]) -> list[int]:
        before = last[0] if last else chunks[0]
        last[:] = chunks[-1:]
        return [before, *chunks[1:]] if next(count) % 7 == 0 else chunks

    change_loads(patch, change)


@fault("TIER-1", stands_for="LMCache#4247", cells=OFFLOAD, rare="only loads of more than four blocks")
def long_loads_end_out_of_order(patch: Patch) -> None:
    """The last two blocks of a load of more than four blocks are swapped."""
    change_loads(patch, lambda chunks: [*chunks[:-2], chunks[-1], chunks[-2]] if len(chunks) > 4 else chunks)


@fault("TIER-1", stands_for="sglang#39830", cells=OFFLOAD)
def the_last_block_is_loaded_over_the_one_before(patch: Patch) -> None:
    """A load writes its last block into the place of the block before it, and nothing into its own place."""

    @after(patch, module(CONNECTOR).OffloadingConnectorScheduler, "update_state_after_alloc")
    def allocated(_result: Any, this: Any, _request: Any, _blocks: Any, count: int) -> None:
        if count:
            spec = list(this._current_batch_load_jobs.values())[-1].dst_spec
            if len(spec.block_ids) > 1:
                acted()
                spec.block_ids[-1] = spec.block_ids[-2]


@fault("TIER-1", stands_for="LMCache PR#2207", cells=OFFLOAD, rare="only loads after a hit in the pool")
def loads_begin_at_the_prompts_start(patch: Patch) -> None:
    """A load that continues a hit in the pool is written over the blocks that were hit."""

    @after(patch, module(CONNECTOR).OffloadingConnectorScheduler, "update_state_after_alloc")
    def allocated(_result: Any, this: Any, request: Any, blocks: Any, count: int) -> None:
        if count and this._req_status[request.request_id].num_locally_computed_tokens:
            acted()
            spec = list(this._current_batch_load_jobs.values())[-1].dst_spec
            spec.block_ids[:] = [block.block_id for block in blocks.blocks[0][: len(spec.block_ids)]]


@fault("TIER-1", stands_for="LMCache#4463", cells=("tier-kept",))
def layers_change_places_in_the_tier(patch: Patch) -> None:
    """A block's layers are stored in one order and loaded in the reverse order."""
    from coldproof.adapters.vllm.fingerprint.connectors import failing  # imported here, because it imports vLLM

    @after(patch, failing.BlockStore, "store")
    def store(_result: Any, keeper: Any, stores: Any) -> None:
        for _, key in stores:
            acted()
            keeper.blocks[key].reverse()


@fault("TIER-1", stands_for="vllm#46951", cells=("tier-simple",), rare="only stores of several blocks")
def the_host_tier_stores_other_blocks(patch: Patch) -> None:
    """Of blocks that are stored together, each is registered at the next one's place in host memory."""

    simple = module("v1.simple_kv_offload.manager").SimpleCPUOffloadScheduler

    @around(patch, simple, "_process_store_completion")
    def stored(original: Any, this: Any, pool: Any, host: Any, *rest: Any) -> None:
        if len(host) > 1:
            acted()
        original(this, pool, [*host[1:], *host[:1]], *rest)
