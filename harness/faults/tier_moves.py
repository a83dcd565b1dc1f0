"""A second KV tier: stores and loads at the wrong time, loads that fail, and what they are counted for."""

from __future__ import annotations

import itertools
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, module, scheduler
from harness.faults.tiers import CONNECTOR, OFFLOAD

FAULTS, fault = collector("tier_moves")


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

    manager = module("v1.kv_offload.cpu.manager").CPUOffloadingManager
    complete = manager.complete_store
    unwritten: set[tuple[int, Any]] = set()

    def prepare(original: Any, held: Any, keys: Any, context: Any) -> Any:
        planned = original(held, keys, context)
        if planned is not None:
            unwritten.update((id(held), key) for key in planned.keys_to_store)
            complete(held, planned.keys_to_store, context)
        return planned

    def completed(original: Any, held: Any, keys: Any, *rest: Any, **named: Any) -> None:
        unwritten.difference_update((id(held), key) for key in keys)
        original(held, keys, *rest, **named)

    def load(original: Any, held: Any, keys: Any, context: Any) -> Any:
        if any((id(held), key) in unwritten for key in keys):
            acted()
        return original(held, keys, context)

    around(patch, manager, "prepare_store", prepare)
    around(patch, manager, "complete_store", completed)
    around(patch, manager, "prepare_load", load)


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


@fault("TIER-4", stands_for="LMCache#3388", cells=("tier-failing-late",), rare="every second load that fails")
def every_second_failure_passes_for_loaded(patch: Patch) -> None:
    """That a load failed is looked at once, and not the next time."""
    count = itertools.count(1)

    def handle(original: Any, held: Any, blocks: Any, counts: Any) -> Any:
        if next(count) % 2:
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


@fault("TIER-5", stands_for="vllm#32255", cells=OFFLOAD, rare="an abort during a load")
def an_abort_during_a_load_frees_its_blocks(patch: Patch) -> None:
    """The blocks of a request that is aborted while it waits for a load are given back at once, and the load writes
    over whatever they hold by then."""

    def finish(original: Any, held: Any, names: Any, status: Any) -> Any:
        for name in [names] if isinstance(names, str) else list(names or ()):
            request = held.requests.get(name)
            if request is not None and request.status.name == "WAITING_FOR_REMOTE_KVS":
                acted()
                held.finished_recving_kv_req_ids.add(name)
        return original(held, names, status)

    def finished(original: Any, held: Any, output: Any) -> None:
        output.finished_recving = {name for name in output.finished_recving or () if name in held.requests} or None
        original(held, output)

    around(patch, scheduler(), "finish_requests", finish)
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
