"""Second KV tier: stores and loads at the wrong time, failed loads, wrong counts and wrong events."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import find_requests, module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, around, before, override, state_of
from coldproof.adapters.vllm.faults.tiers.keys_and_loads import CONNECTOR, OFFLOAD

FAULTS, fault = collector("tier_moves")


@fault(
    "TIER-1",
    stands_for="vllm#54193, vllm PR#54288",
    cells=OFFLOAD,
    rare="only for an answer that ends at the end of a block",
)
def the_tier_stores_the_last_slot(patch: Patch) -> None:
    """A finished request's block is stored including the slot of its last sampled token, which no pass wrote."""

    @around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "_calc_num_offloadable_tokens")
    def offloadable(original: Any, this: Any, status: Any, computed: int) -> int:
        request = status.req
        if request.is_finished() and request.status.name != "FINISHED_ABORTED":
            size = this.config.kv_group_configs[0].tokens_per_chunk
            if computed < request.num_tokens and request.num_tokens % size == 0:
                acted()
            computed = request.num_tokens
        return int(original(this, status, computed))


@fault("TIER-2", stands_for="vllm PR#29870", cells=OFFLOAD)
def stores_read_blocks_that_were_handed_on(patch: Patch) -> None:
    """The engine does not wait for a running store when its blocks are allocated again. The store reads what the new
    owner wrote.
    """

    @after(patch, module(CONNECTOR).OffloadingConnectorScheduler, "build_connector_meta")
    def build(meta: Any, _this: Any, _scheduled: Any) -> None:
        if meta.jobs_to_flush:
            acted()
            meta.jobs_to_flush = set()


@fault(
    "TIER-2", stands_for="vllm#54193", cells=OFFLOAD, rare="only for a block that is looked up while it is being stored"
)
def blocks_can_be_loaded_before_they_are_stored(patch: Patch) -> None:
    """A block can be loaded from the moment when its store is planned."""

    manager = module("v1.kv_offload.cpu.manager").CPUOffloadingManager
    complete = manager.complete_store
    unwritten: set[tuple[int, Any]] = set()

    @after(patch, manager, "prepare_store")
    def prepare(planned: Any, this: Any, _keys: Any, context: Any) -> None:
        if planned is not None:
            unwritten.update((id(this), key) for key in planned.keys_to_store)
            complete(this, planned.keys_to_store, context)

    @before(patch, manager, "complete_store")
    def completed(this: Any, keys: Any, *_: Any, **__: Any) -> None:
        unwritten.difference_update((id(this), key) for key in keys)

    @before(patch, manager, "prepare_load")
    def load(this: Any, keys: Any, _context: Any) -> None:
        if any((id(this), key) in unwritten for key in keys):
            acted()


@fault(
    "TIER-1", stands_for="LMCache#4385", cells=("tier-offload-small",), rare="only when the tier is full during a load"
)
def chunks_are_given_up_while_they_are_loaded(patch: Patch) -> None:
    """A load does not hold its chunks: a store may replace them before they are read."""
    manager = module("v1.kv_offload.cpu.manager").CPUOffloadingManager
    loading: set[Any] = set()

    @after(patch, manager, "prepare_load")
    def prepare(_spec: Any, this: Any, keys: Any, context: Any) -> None:
        complete(this, keys, context)
        loading.update(keys)

    @after(patch, manager, "prepare_store")
    def store(planned: Any, _this: Any, _keys: Any, _context: Any) -> None:
        if planned is not None and loading & set(planned.evicted_keys):
            acted()

    complete = manager.complete_load

    @around(patch, manager, "complete_load")
    def completed(_original: Any, _held: Any, keys: Any, _context: Any) -> None:
        loading.difference_update(keys)


def ignore_failed_loads(patch: Patch, is_ignored: Callable[[Any], bool]) -> None:
    """Ignore the reports of failed loads for which `is_ignored(failed blocks)` is true."""

    @around(patch, scheduler(), "_handle_invalid_blocks")
    def handle(original: Any, this: Any, blocks: Any, counts: Any) -> Any:
        if not is_ignored(blocks):
            return original(this, blocks, counts)
        acted()
        return set()


@fault("TIER-4", stands_for="LMCache#3388", cells=("tier-failing", "tier-failing-late"))
def failed_loads_count_as_loaded(patch: Patch) -> None:
    """The report of a failed load is ignored."""
    ignore_failed_loads(patch, lambda _blocks: True)


@fault("TIER-4", stands_for="vllm#49250", cells=("tier-failing",), rare="only loads of which a single block fails")
def a_single_failed_block_counts_as_loaded(patch: Patch) -> None:
    """The report of a failed load is ignored if a single block failed."""
    ignore_failed_loads(patch, lambda blocks: len(blocks) <= 1)


@fault("TIER-4", stands_for="LMCache#3388", cells=("tier-failing-late",), rare="only every second failed load")
def every_second_failed_load_counts_as_loaded(patch: Patch) -> None:
    """The report of every second failed load is ignored."""
    count = itertools.count(1)
    ignore_failed_loads(patch, lambda _blocks: next(count) % 2 == 0)


def lose_completions(patch: Patch, is_lost: Callable[[Any, str], bool]) -> None:
    """Lose the completions of loads for which `is_lost(scheduler, request id)` is true."""

    @before(patch, scheduler(), "_update_from_kv_xfer_finished")
    def finished(this: Any, output: Any) -> None:
        lost = {name for name in sorted(output.finished_recving or ()) if is_lost(this, name)}
        if lost:
            acted()
            output.finished_recving = set(output.finished_recving) - lost


@fault("TIER-1", stands_for="vllm#45388", cells=OFFLOAD, rare="only every fifth load")
def every_fifth_load_resumes_no_request(patch: Patch) -> None:
    """The end of every fifth load is lost, and the request that waits for it waits forever."""
    count = itertools.count(1)
    lose_completions(patch, lambda _held, _name: next(count) % 5 == 0)


@fault("TIER-5", stands_for="vllm#46283", cells=OFFLOAD, rare="only for an abort during a load")
def an_abort_during_a_load_leaks(patch: Patch) -> None:
    """The blocks of a request that was aborted while it waited for a load are never freed."""
    lose_completions(patch, lambda this, name: bool(this.requests[name].is_finished()))


@fault("TIER-5", stands_for="vllm#32255", cells=OFFLOAD, rare="only for an abort during a load")
def an_abort_during_a_load_frees_its_blocks(patch: Patch) -> None:
    """The blocks of a request that is aborted while it waits for a load are freed at once, and the load writes over
    their new content.
    """

    @before(patch, scheduler(), "finish_requests")
    def finish(this: Any, names: Any, _status: Any) -> None:
        for request in find_requests(this, names):
            if request.status.name == "WAITING_FOR_REMOTE_KVS":
                acted()
                this.finished_recving_kv_req_ids.add(request.request_id)

    @before(patch, scheduler(), "_update_from_kv_xfer_finished")
    def finished(this: Any, output: Any) -> None:
        output.finished_recving = {name for name in output.finished_recving or () if name in this.requests} or None


@fault("TIER-1", stands_for="vllm PR#30522", cells=OFFLOAD)
def loads_are_counted_twice(patch: Patch) -> None:
    """The counter of tokens from the second tier counts each load twice."""

    @around(patch, module("v1.metrics.stats").PrefixCacheStats, "record")
    def record(
        original: Any, stats: Any, num_tokens: int, num_hits: int, preempted: bool, hits_by_source: Any = None
    ) -> None:
        if hits_by_source and num_hits:
            acted()
            num_hits *= 2
        original(stats, num_tokens, num_hits, preempted, hits_by_source)


@fault("TIER-6", stands_for="llama.cpp#27052, LMCache#4247, for files of an earlier engine", cells=("tier-example",))
def files_of_an_earlier_engine_are_read_in_part(patch: Patch) -> None:
    """A load from a file that another engine wrote leaves out the last eight tokens, whose slots stay as they are."""
    example = module("distributed.kv_transfer.kv_connector.v1.example_connector")
    files = example.safetensors.torch
    own: dict[int, set[str]] = {}  # the files that each connector wrote

    @around(patch, example.ExampleConnector, "save_kv_layer")
    def save(original: Any, this: Any, *rest: Any, **named: Any) -> None:
        save_file = files.save_file

        def record(tensors: Any, name: str) -> None:
            own.setdefault(id(this), set()).add(name)
            save_file(tensors, name)

        with override(files, "save_file", record):
            original(this, *rest, **named)

    @around(patch, example.ExampleConnector, "start_load_kv")
    def load(original: Any, this: Any, *rest: Any, **named: Any) -> None:
        load_file = files.load_file

        def read(name: str) -> Any:
            tensors = load_file(name)
            if name not in own.get(id(this), ()):
                acted()
                tensors["kv_cache"][-8:] = 0
            return tensors

        with override(files, "load_file", read):
            original(this, *rest, **named)


@fault("EVENT-1", "EVENT-2", stands_for="vllm PR#54325", cells=("events-offload",))
def the_tiers_events_have_the_tokens_of_other_blocks(patch: Patch) -> None:
    """Each stored-block event of the second tier has the tokens of the event before it."""

    @around(patch, module(CONNECTOR).OffloadingConnectorScheduler, "take_events")
    def take(original: Any, this: Any) -> Iterator[Any]:
        tokens = state_of(this, "tokens_told", lambda: deque[list[int]](maxlen=2))
        for event in original(this):
            if not getattr(event, "token_ids", None):  # a removal, or a placeholder
                yield event
                continue
            tokens.append(event.token_ids)
            if tokens[0] != event.token_ids:
                acted()
            yield replace(event, token_ids=tokens[0])


@fault("TIER-1", stands_for="vllm#51786, vllm PR#50546, vllm#53049", cells=("tier-multi",))
def each_part_of_a_tier_loads_a_request(patch: Patch) -> None:
    """Each of several connectors that has a prompt loads it, and reports the end of its load."""
    several = module("distributed.kv_transfer.kv_connector.v1.multi_connector").MultiConnector
    matched: dict[str, list[int]] = {}

    @around(patch, several, "get_num_new_matched_tokens")
    def match(_original: Any, this: Any, request: Any, computed: int) -> tuple[int | None, bool]:
        found = [part.get_num_new_matched_tokens(request, computed) for part in this._connectors]
        if any(tokens is None for tokens, _ in found):
            return None, False
        matched[request.request_id] = [tokens for tokens, _ in found]
        first = next((place for place, (tokens, _) in enumerate(found) if tokens), None)
        if first is None:
            return 0, False
        this._requests_to_connector[request.request_id] = first
        return found[first]  # type: ignore[no-any-return]

    @around(patch, several, "update_state_after_alloc")
    def allocated(_original: Any, this: Any, request: Any, blocks: Any, tokens: int) -> None:
        first = this._requests_to_connector.get(request.request_id, -1)
        found = matched.get(request.request_id, [0] * len(this._connectors))
        for place, part in enumerate(this._connectors):
            loads = place == first or found[place] == tokens
            if tokens and loads and place != first:
                acted()
            part.update_state_after_alloc(request, blocks, tokens if loads else 0)


@fault("TIER-1", stands_for="a tier whose blocks never enter the pool's index", cells=OFFLOAD)
def loaded_blocks_leave_the_index(patch: Patch) -> None:
    """What a request loaded from the tier leaves the pool's index when the request ends: each later one loads again."""
    manager = module("v1.core.kv_cache_manager").KVCacheManager
    loaded: dict[str, range] = {}

    @around(patch, manager, "allocate_slots")
    def allocate(original: Any, this: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        done = original(this, request, *arguments, **named)
        if done is not None and named.get("num_external_computed_tokens"):
            first = named["num_new_computed_tokens"] + request.num_computed_tokens
            loaded[request.request_id] = range(first, first + named["num_external_computed_tokens"])
        return done

    @around(patch, manager, "free")
    def free(original: Any, this: Any, request: Any) -> None:
        tokens = loaded.pop(request.request_id, range(0))
        for managed in this.coordinator.single_type_managers if tokens else ():
            blocks = this.get_block_ids(request.request_id)[managed.kv_cache_group_id]
            size = managed.block_size
            this.evict_blocks(set(blocks[tokens.start // size : tokens.stop // size]))
            acted()
        original(this, request)


@fault("TIER-9", stands_for="a limit on loads that is not kept", cells=OFFLOAD)
def limits_on_loads_are_ignored(patch: Patch) -> None:
    """All that the tier has is loaded, whatever the request allows."""

    @after(patch, module(CONNECTOR).RequestOffloadState, "__post_init__")
    def made(_done: Any, this: Any) -> None:
        if this.max_load_tokens is not None:
            acted()
            this.max_load_tokens = None
