"""Bugs of the past: a second KV tier, whose loads wait for room, and whose counts and positions are wrong."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, module, scheduler
from coldproof.adapters.vllm.faults.patching import acted, after, around, before, override
from coldproof.adapters.vllm.faults.tiers.keys_and_loads import CONNECTOR, OFFLOAD

FAULTS, fault = collector("past_tiers")
SMALL = ("tier-offload", "tier-offload-small")
EVENTS = "distributed.kv_transfer.kv_connector.v1.offloading.events"


def offloading() -> Any:
    """Return the class that plans the stores and loads of the host tier."""
    return module(CONNECTOR).OffloadingConnectorScheduler


@fault("TIER-1", stands_for="vllm PR#34616", cells=("state+tier-offload+unit-8",))
def a_load_that_ends_inside_a_block_counts_the_whole_block(patch: Patch) -> None:
    """The tokens of a load are its blocks times their size."""

    @before(patch, scheduler(), "_update_waiting_for_remote_kv")
    def loaded(this: Any, request: Any) -> None:
        whole = min(-(-request.num_computed_tokens // this.block_size) * this.block_size, request.num_tokens)
        if whole > request.num_computed_tokens:
            acted()
            request.num_computed_tokens = whole


@fault("TIER-1", "TIER-2", "TIER-5", stands_for="vllm#45388, vllm#45387", cells=SMALL)
def loads_reserve_only_what_they_load(patch: Patch) -> None:
    """A load is admitted if there is room for what it loads, also if the rest of its prompt then finds none."""

    @around(patch, manager(), "allocate_slots")
    def allocate(original: Any, this: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("delay_cache_blocks"):
            return original(this, request, *args, **kwargs)
        reserved = kwargs.get("reserved_blocks", 0)
        blocks = original(this, request, *args, **kwargs | {"reserved_blocks": 0, "full_sequence_must_fit": False})
        if blocks is not None and this.block_pool.get_num_free_blocks() < reserved:
            acted()
        return blocks


@fault("TIER-1", "TIER-2", "TIER-5", stands_for="vllm PR#57841", cells=SMALL)
def finished_loads_wait_behind_what_does_not_fit(patch: Patch) -> None:
    """Requests that wait for a load stand in the queue as all others. It is read up to the first that does not fit."""

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        held = [this.kv_holding_waiting.pop_request() for _ in range(len(this.kv_holding_waiting))]
        if held and this.waiting:
            acted()
        for request in held:
            this.waiting.add_request(request)


@fault("TIER-1", "TIER-2", "TIER-5", stands_for="vllm PR#18631", cells=SMALL)
def a_load_that_finds_no_room_is_forgotten(patch: Patch) -> None:
    """A request whose load has ended, and that then finds no room, waits for the end of its load again. Loads are
    admitted with room for what they load.
    """

    loads_reserve_only_what_they_load(patch)

    @after(patch, manager(), "allocate_slots")
    def allocated(blocks: Any, _this: Any, request: Any, *_: Any, **kwargs: Any) -> None:
        waits = request.status.name in ("WAITING", "PREEMPTED")
        if blocks is None and waits and request.num_computed_tokens and "new_computed_blocks" in kwargs:
            acted()
            request.status = module("v1.request").RequestStatus.WAITING_FOR_REMOTE_KVS


@fault("TIER-1", "TIER-2", stands_for="vllm#46014", cells=SMALL)
def a_request_loads_while_its_stores_run(patch: Patch) -> None:
    """A preempted request is admitted again, and loads, while its blocks are still being stored. Nothing waits for the
    stores of preempted requests.
    """

    @around(patch, offloading(), "build_connector_meta")
    def build(original: Any, this: Any, output: Any) -> Any:
        with override(output, "preempted_req_ids", None):
            return original(this, output)

    @around(patch, offloading(), "get_num_new_matched_tokens")
    def match(original: Any, this: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        state = this._req_status[request.request_id]
        running, state.transfer_jobs = state.transfer_jobs, set()
        try:
            found = original(this, request, *args, **kwargs)
        finally:
            state.transfer_jobs = running
        if running and found[0]:
            acted()
        return found


@fault("TIER-1", "TIER-5", stands_for="vllm#46971, vllm PR#46972", cells=OFFLOAD)
def stores_skip_the_chunk_in_progress(patch: Patch) -> None:
    """The position of the next store is rounded up to whole chunks."""

    @around(patch, module(CONNECTOR).RequestOffloadState, "advance_stored_idx")
    def advance(original: Any, this: Any, tokens: int) -> None:
        chunk = max(group.tokens_per_chunk for group in this.config.kv_group_configs)
        if tokens % chunk:
            acted()
        original(this, -(-tokens // chunk) * chunk)


@fault("TIER-1", "TIER-2", stands_for="LMCache PR#2091", cells=OFFLOAD)
def a_tier_counts_what_the_pool_has(patch: Patch) -> None:
    """The tier answers with all tokens that it has of a prompt, where those beyond the pool's are asked for."""

    @around(patch, offloading(), "get_num_new_matched_tokens")
    def match(original: Any, this: Any, request: Any, computed: int, *args: Any, **kwargs: Any) -> Any:
        found, later = original(this, request, computed, *args, **kwargs)
        if not found or not computed:
            return found, later
        acted()
        return min(found + computed, request.num_tokens - computed), later


@fault("TIER-2", "TIER-5", stands_for="LMCache#2158", cells=SMALL)
def a_resumed_request_loads_less_than_nothing(patch: Patch) -> None:
    """The tier subtracts the pool's tokens from its own, also where the pool of a resumed request has more."""

    @around(patch, offloading(), "get_num_new_matched_tokens")
    def match(original: Any, this: Any, request: Any, computed: int, *args: Any, **kwargs: Any) -> Any:
        found, later = original(this, request, computed, *args, **kwargs)
        if found != 0 or computed < this.config.kv_group_configs[0].tokens_per_chunk or not request.num_preemptions:
            return found, later
        acted()
        return -this.config.kv_group_configs[0].tokens_per_chunk, False


@fault(
    "TIER-5",
    "MIXED-2",
    stands_for="LMCache PR#4998",
    cells=("tier-simple-lazy", "tier-simple", "tier-simple+chunks-24"),
)
def an_idle_engine_does_not_wait_for_stores(patch: Patch) -> None:
    """Without requests, no step is made, so that the end of a store is seen with the next request."""
    connector = module("distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector")

    @around(patch, connector.SimpleCPUOffloadConnector, "has_pending_push_work")
    def pending(original: Any, this: Any) -> bool:
        if original(this):
            acted()
        return False


@fault(
    "EVENT-4",
    "MIXED-2",
    stands_for="vllm PR#51614",
    cells=("five-groups+tier-offload-described+events", "window+tier-offload-described+events"),
)
def events_of_a_tier_have_hashes_of_the_smallest_block(patch: Patch) -> None:
    """The events of a tier have one hash for each smallest block, where the others have one for each of a group's."""

    @after(patch, module(EVENTS).OffloadingEventsTracker, "_build_event_metadata")
    def built(found: Any, _this: Any, request: Any, group: Any, chunk: int) -> None:
        first = chunk * group.hashes_per_chunk
        hashes = tuple(request.block_hashes[first : first + group.hashes_per_chunk])
        if len(hashes) != len(found.block_hashes):
            acted()
            found.block_hashes = hashes
