"""A second KV tier: keys of its own, loads into the wrong place, stores at the wrong time, loads that fail."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, module, scheduler

FAULTS, fault = collector("tiers")

OFFLOAD = ("tier-offload",)
CONNECTOR = "distributed.kv_transfer.kv_connector.v1.offloading.scheduler"


def keyed(patch: Patch, rest: Callable[[Any], object], *, whole_prefix: bool = True) -> None:
    """Have the offloading connector's keys be made of tokens and what `rest` gives of a request."""
    offloading = module("v1.kv_offload.base")

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
                acted()

    around(patch, module(CONNECTOR).RequestOffloadState, "update_offload_keys", update)


def adapter(request: Any) -> tuple[str, str] | None:
    """Name and path of a request's adapter."""
    return None if request.lora_request is None else (request.lora_request.lora_name, request.lora_request.lora_path)


@fault("TIER-3", stands_for="LMCache#2878, vllm PR#39837", cells=OFFLOAD)
def tier_keys_forget_salts(patch: Patch) -> None:
    """The tier finds blocks by tokens and adapter: tenants with different salts load one another's."""
    keyed(patch, adapter)


@fault("TIER-3", stands_for="vllm#44250, LMCache#2961", cells=OFFLOAD)
def tier_keys_forget_adapters(patch: Patch) -> None:
    """The tier finds blocks by tokens and salt: an adapter's are loaded for the base model."""
    keyed(patch, lambda request: request.cache_salt)


@fault("TIER-3", stands_for="sglang#26792, vllm#42125", cells=OFFLOAD, rare="an adapter loaded again under its name")
def tier_keys_forget_reloads(patch: Patch) -> None:
    """The tier knows an adapter by its name alone: what an earlier content wrote is loaded after a reload."""
    keyed(patch, lambda r: (r.cache_salt, None if r.lora_request is None else r.lora_request.lora_name))


@fault("TIER-1", stands_for="LMCache#4385", cells=OFFLOAD, rare="equal blocks behind unequal ones")
def tier_keys_forget_what_came_before(patch: Patch) -> None:
    """The tier finds a block by its own tokens, whatever stood before them."""
    keyed(patch, lambda request: (request.cache_salt, adapter(request)), whole_prefix=False)


def loaded(patch: Patch, change: Callable[[list[int]], list[int]]) -> None:
    """Have a load read other chunks of the host's memory than it was told to."""

    def prepare(original: Any, held: Any, keys: Any, *rest: Any, **named: Any) -> Any:
        spec = original(held, keys, *rest, **named)
        told = [int(one) for one in spec.block_ids]
        read = change(told)
        if read != told:
            acted()
        return type(spec)(read)

    around(patch, module("v1.kv_offload.cpu.manager").CPUOffloadingManager, "prepare_load", prepare)


@fault("TIER-1", stands_for="sglang#39830", cells=OFFLOAD)
def loads_are_a_block_off(patch: Patch) -> None:
    """A load of several blocks gives each the content of the next one."""
    loaded(patch, lambda chunks: [*chunks[1:], chunks[0]])


@fault("TIER-1", stands_for="sglang#27504", cells=OFFLOAD, rare="every seventh load")
def every_seventh_load_reads_another_block(patch: Patch) -> None:
    """The first block of every seventh load is read from where the load before it ended."""
    count = itertools.count(1)
    last: list[int] = []

    def change(chunks: list[int]) -> list[int]:
        before = last[0] if last else chunks[0]
        last[:] = chunks[-1:]
        return [before, *chunks[1:]] if next(count) % 7 == 0 else chunks

    loaded(patch, change)


@fault("TIER-1", stands_for="LMCache#4247", cells=OFFLOAD, rare="loads of more than four blocks")
def long_loads_end_out_of_order(patch: Patch) -> None:
    """The last two blocks of a load of more than four change places."""
    loaded(patch, lambda chunks: [*chunks[:-2], chunks[-1], chunks[-2]] if len(chunks) > 4 else chunks)


@fault("TIER-1", stands_for="sglang#39830", cells=OFFLOAD)
def the_last_block_is_loaded_over_the_one_before(patch: Patch) -> None:
    """A load writes its last block into the place of the one before it, and nothing into its own."""

    def allocated(original: Any, held: Any, request: Any, blocks: Any, count: int) -> None:
        original(held, request, blocks, count)
        if count:
            spec = list(held._current_batch_load_jobs.values())[-1].dst_spec
            if len(spec.block_ids) > 1:
                acted()
                spec.block_ids[-1] = spec.block_ids[-2]

    around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "update_state_after_alloc", allocated)


@fault("TIER-1", stands_for="LMCache#4463", cells=("tier-kept",))
def layers_change_places_in_the_tier(patch: Patch) -> None:
    """A block is stored layer by layer in one order and loaded in the other."""
    from adapters.fingerprint.tier import failing  # it imports vLLM

    def store(original: Any, keeper: Any, stores: Any) -> None:
        original(keeper, stores)
        for _, key in stores:
            acted()
            keeper.kept[key].reverse()

    around(patch, failing.Keeper, "store", store)


@fault("TIER-1", stands_for="vllm#54193, vllm PR#54288", cells=OFFLOAD, rare="an answer that ends with a block")
def the_tier_stores_the_last_slot(patch: Patch) -> None:
    """A finished request's block is stored with the slot of its last sampled token, which no pass wrote."""

    def offloadable(original: Any, held: Any, status: Any, computed: int) -> int:
        request = status.req
        if request.is_finished() and request.status.name != "FINISHED_ABORTED":
            if (
                computed < request.num_tokens
                and request.num_tokens % held.config.kv_group_configs[0].tokens_per_chunk == 0
            ):
                acted()
            computed = request.num_tokens
        return int(original(held, status, computed))

    around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "_calc_num_offloadable_tokens", offloadable)


@fault("TIER-2", stands_for="vllm PR#29870", cells=OFFLOAD)
def stores_read_blocks_that_were_handed_on(patch: Patch) -> None:
    """A store that is under way when its blocks get a new owner is not waited for, and reads what the new one wrote."""

    def build(original: Any, held: Any, scheduled: Any) -> Any:
        meta = original(held, scheduled)
        if meta.jobs_to_flush:
            acted()
            meta.jobs_to_flush = set()
        return meta

    around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "build_connector_meta", build)


@fault("TIER-2", stands_for="vllm#54193", cells=OFFLOAD, rare="a block asked for while it is being stored")
def blocks_can_be_loaded_before_they_are_stored(patch: Patch) -> None:
    """A block counts as stored from the moment at which its store is planned."""

    def prepare(original: Any, held: Any, keys: Any, context: Any) -> Any:
        planned = original(held, keys, context)
        if planned is not None and planned.keys_to_store:
            acted()
            held.complete_store(planned.keys_to_store, context)
        return planned

    around(patch, module("v1.kv_offload.cpu.manager").CPUOffloadingManager, "prepare_store", prepare)


@fault("TIER-1", stands_for="LMCache#4385", cells=("tier-offload-small",), rare="a tier that is full while it loads")
def chunks_are_given_up_while_they_are_loaded(patch: Patch) -> None:
    """A load does not hold its chunks: a store may take their place before they are read."""
    manager = module("v1.kv_offload.cpu.manager").CPUOffloadingManager
    loading: set[Any] = set()

    def prepare(original: Any, held: Any, keys: Any, context: Any) -> Any:
        spec = original(held, keys, context)
        complete(held, keys, context)
        loading.update(keys)
        return spec

    def store(original: Any, held: Any, keys: Any, context: Any) -> Any:
        planned = original(held, keys, context)
        if planned is not None and loading & set(planned.evicted_keys):
            acted()
        return planned

    complete = manager.complete_load
    around(patch, manager, "prepare_load", prepare)
    around(patch, manager, "prepare_store", store)
    around(patch, manager, "complete_load", lambda _original, _held, keys, _context: loading.difference_update(keys))


@fault("TIER-4", stands_for="LMCache#3388", cells=("tier-failing", "tier-failing-late"))
def failed_loads_pass_for_loaded(patch: Patch) -> None:
    """That a load failed is told, and nobody listens."""

    def handle(_original: Any, _held: Any, _blocks: Any, _counts: Any) -> set[str]:
        acted()
        return set()

    around(patch, scheduler(), "_handle_invalid_blocks", handle)


@fault("TIER-4", stands_for="vllm#49250", cells=("tier-failing",), rare="loads that fail in their last block alone")
def a_single_failed_block_passes_for_loaded(patch: Patch) -> None:
    """That one block of a load failed is not looked at; that several did is."""

    def handle(original: Any, held: Any, blocks: Any, counts: Any) -> Any:
        if len(blocks) > 1:
            return original(held, blocks, counts)
        acted()
        return set()

    around(patch, scheduler(), "_handle_invalid_blocks", handle)


@fault("TIER-1", stands_for="vllm#45388", cells=OFFLOAD, rare="every fifth load")
def every_fifth_load_wakes_nobody(patch: Patch) -> None:
    """The end of every fifth load is lost, and the request that waits for it waits for ever."""
    count = itertools.count(1)

    def finished(original: Any, held: Any, output: Any) -> None:
        ended = set(output.finished_recving or ())
        lost = {name for name in sorted(ended) if next(count) % 5 == 0}
        if lost:
            acted()
            output.finished_recving = ended - lost
        original(held, output)

    around(patch, scheduler(), "_update_from_kv_xfer_finished", finished)


@fault("TIER-5", stands_for="vllm#46283", cells=OFFLOAD, rare="an abort during a load")
def an_abort_during_a_load_leaks(patch: Patch) -> None:
    """The blocks of a request that was aborted while it waited for a load are never given back."""

    def finished(original: Any, held: Any, output: Any) -> None:
        gone = {name for name in output.finished_recving or () if held.requests[name].is_finished()}
        if gone:
            acted()
            output.finished_recving = set(output.finished_recving) - gone
        original(held, output)

    around(patch, scheduler(), "_update_from_kv_xfer_finished", finished)


@fault("TIER-1", stands_for="vllm PR#30522", cells=OFFLOAD)
def loads_are_counted_twice(patch: Patch) -> None:
    """The counter of tokens that a second tier gave grows by twice as many."""

    def record(
        original: Any, stats: Any, num_tokens: int, num_hits: int, preempted: bool, hits_by_source: Any = None
    ) -> None:
        if hits_by_source and num_hits:
            acted()
            num_hits *= 2
        original(stats, num_tokens, num_hits, preempted, hits_by_source)

    around(patch, module("v1.metrics.stats").PrefixCacheStats, "record", record)
