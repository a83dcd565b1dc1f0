"""Coldproof's own KV connector: a second tier in the worker's memory, whose loads can fail on purpose.

It stores blocks under vLLM's block hashes, so the failing loads are its only errors. The length of the prompt decides
which loads fail, so that a counterexample repeats. The load of a request fails only once; its next load succeeds.

With several KV-cache groups, which must have blocks of one size, a key is a hash and the number of the group. Of a
sliding window, a load needs only the blocks inside the window.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

from coldproof.adapters.server.vllm_metrics import FAILED_LOADS_COUNTER
from coldproof.adapters.vllm.fingerprint.connectors.deferred_copies import DeferredCopies, polls_of
from coldproof.adapters.vllm.kv_tiers import FAILED_LOADS, KEPT_BLOCKS

# The remainder of the prompt length modulo LENGTHS selects what a load reads: 0: nothing; READABLE: everything; 2: all
# but the last block.
LENGTHS = 3
READABLE = 1
STATE_WINDOW = 2  # tokens: the one that is computed, and the one before it
NULL = 0  # vLLM's block that stands for what is outside of a window

Key = tuple[int, bytes]  # the number of a group, and vLLM's hash of a block


@dataclass
class PlannedLoad:
    """A load for a request. `blocks`: the target blocks in the pool. `unreadable`: the indices of blocks that fail."""

    request: str
    blocks: list[int]
    keys: list[Key]
    unreadable: set[int]


@dataclass
class StepTransfers(KVConnectorMetadata):
    """The loads, the stores (block, key) and the evicted keys of one step, in the order of execution."""

    loads: list[PlannedLoad] = field(default_factory=list)
    stores: list[tuple[int, Key]] = field(default_factory=list)
    evicted: list[Key] = field(default_factory=list)


class LoadFailureStats(KVConnectorStats):
    """The number of failed loads in a step, for vLLM's log and metrics.

    The harness needs the number: if a failed load ends its request, there may be as many errors as failed loads.
    """

    data: dict[str, Any]

    def reset(self) -> None:
        """Set the number to zero."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> LoadFailureStats:
        """Return the sum of both."""
        return LoadFailureStats({FAILED_LOADS: sum(int(one.data.get(FAILED_LOADS, 0)) for one in (self, other))})

    def reduce(self) -> dict[str, int | float]:
        """Return the values for vLLM's log."""
        return {FAILED_LOADS: int(self.data.get(FAILED_LOADS, 0))}

    def is_empty(self) -> bool:
        """Return whether no load failed."""
        return not self.data.get(FAILED_LOADS)


class LoadFailureMetric(KVConnectorPromMetrics):
    """The server's Prometheus counter of failed loads."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], labels: dict[int, list[Any]]
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, labels)
        family = metric_types[Counter](
            name=FAILED_LOADS_COUNTER, documentation="Loads from the second KV tier that failed.", labelnames=labelnames
        )
        self.counters = {engine: family.labels(*values) for engine, values in labels.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add the failed loads of one step."""
        self.counters[engine_idx].inc(int(transfer_stats_data.get(FAILED_LOADS, 0)))


class FailingConnector(KVConnectorBase_V1, SupportsHMA):
    """The connector. Options: `asynchronous` (loads), `failing` (loads) and `blocks` (the capacity of the tier)."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = vllm_config.kv_transfer_config.kv_connector_extra_config
        block = int(vllm_config.cache_config.block_size)
        check_groups(block, [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups], options)
        self.planner = TransferPlanner(
            block=block,
            asynchronous=bool(options.get("asynchronous")),
            failing=bool(options.get("failing")),
            capacity=int(options.get("blocks", KEPT_BLOCKS)),
            windows=[window_of(group.kv_cache_spec) for group in kv_cache_config.kv_cache_groups],
        )
        # A block's number says nothing about its group. Up to 0.29, vLLM knows no failures but those of blocks.
        by_request = len(self.planner.windows) > 1 and hasattr(KVConnectorBase_V1, "get_transfer_results")
        self.store = BlockStore(asynchronous=self.planner.asynchronous, by_request=by_request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the number of tokens to load after the local hit, and whether the load is asynchronous."""
        return self.planner.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plan the load of the matched tokens into the allocated blocks."""
        self.planner.plan(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepTransfers:
        """Return the transfers that the worker must execute in this step."""
        return self.planner.step_transfers(scheduler_output)

    def get_kv_connector_stats(self) -> LoadFailureStats | None:
        """Return and reset the number of failed loads; None if there are none."""
        failed, self.planner.failed = self.planner.failed, 0
        return LoadFailureStats({FAILED_LOADS: failed}) if failed else None

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:  # noqa: ARG002 - vLLM's
        """Return that the blocks can be freed at once: stores end with their step."""
        self.planner.requests.pop(request.request_id, None)
        self.planner.tables.pop(request.request_id, None)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        """As `request_finished`, which vLLM calls with one group."""
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        """Empty the tier. The worker's copies may remain: without a stored key, nothing loads them."""
        self.planner.stored.clear()
        return True

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> LoadFailureStats:
        """Return the statistics of serialised data."""
        return LoadFailureStats(data or {})

    @classmethod
    def build_prom_metrics(cls, *given: Any) -> LoadFailureMetric:
        """Return the server's Prometheus counter."""
        return LoadFailureMetric(*given)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Set the worker's KV tensors."""
        self.store.tensors = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:  # noqa: ARG002 - vLLM's
        """Execute the loads of this step; if they are asynchronous, submit them."""
        self.store.load(self._get_connector_metadata().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: synchronous loads are complete after `start_load_kv`."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """Do nothing: `wait_for_save` stores all layers together."""

    def wait_for_save(self) -> None:
        """Store the blocks of this step, then remove the evicted ones."""
        transfers = self._get_connector_metadata()
        self.store.store(transfers.stores)
        for key in transfers.evicted:
            self.store.blocks.pop(key, None)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:  # noqa: ARG002 - vLLM's
        """Return the requests whose asynchronous loads have completed, with or without failures."""
        return None, set(self.store.copies.poll()) or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Return the completed loads, and with several groups the requests whose load failed."""
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving, self.store.failed_requests = self.store.failed_requests, set()
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return and reset the blocks whose load failed."""
        failed, self.store.failed = self.store.failed, set()
        return failed


def check_groups(block: int, sizes: Sequence[int], options: dict[str, Any]) -> None:
    """Raise ValueError if a group's blocks are not of the size for which vLLM makes hashes, and for several groups
    with failing loads that vLLM gives no way to report (`Scheduler._handle_invalid_blocks`).
    """
    if set(sizes) != {block}:
        raise ValueError(f"{FailingConnector.__name__} stores blocks of {block} tokens, and the groups have {sizes}")
    if len(sizes) > 1 and options.get("failing") and not options.get("asynchronous"):
        raise ValueError("vLLM knows failed loads of several groups only where loads are asynchronous")


def window_of(spec: Any) -> int | None:
    """Return the window of a group in tokens; None if it keeps everything.

    The specification of full attention has that field, too: where a group is shared by both kinds of layers. A state
    follows from the one before it, which is in the block that ends there.
    """
    if isinstance(spec, MambaSpec):
        return STATE_WINDOW
    return spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None


class TransferPlanner:
    """The scheduler's side of the connector: which blocks are stored, and which transfers the worker executes.

    `windows`: for each group its window in tokens, None for full attention.
    """

    def __init__(
        self, *, block: int, asynchronous: bool, failing: bool, capacity: int, windows: Sequence[int | None] = (None,)
    ) -> None:
        self.block, self.asynchronous, self.failing, self.capacity = block, asynchronous, failing, capacity
        self.windows = windows
        self.stored: OrderedDict[Key, None] = OrderedDict()  # the least recently used first
        self.requests: dict[str, Any] = {}
        self.tables: dict[str, list[list[int]]] = {}  # request -> for each group its blocks in the pool
        self.first: dict[str, int] = {}  # request -> the index of the first matched block
        self.loads: list[PlannedLoad] = []
        self.tried: set[str] = set()  # requests whose load has failed once
        self.failed = 0

    def match(self, request: Any, local: int) -> tuple[int, bool]:
        """Return the tokens of the stored blocks after the local hit, and whether their load is asynchronous.

        At least one token of the request is left to compute.
        """
        first = self.first[request.request_id] = local // self.block
        for end in range((request.num_tokens - 1) // self.block, first, -1):
            if all(key in self.stored for _, key in self.needed(request, first, end)):
                return (end - first) * self.block, self.asynchronous
        return 0, False

    def needed(self, request: Any, first: int, end: int) -> list[tuple[int, Key]]:
        """Return what a load of the blocks from `first` to before `end` reads: the number of a block and its key."""
        return [
            (number, (group, request.block_hashes[number]))
            for group, window in enumerate(self.windows)
            for number in range(max(first, self.oldest(window, end)), end)
        ]

    def oldest(self, window: int | None, end: int) -> int:
        """Return the first block that the token behind `end` blocks attends to. A window counts that token, too."""
        return 0 if window is None else max(0, (end * self.block - window + 1) // self.block)

    def plan(self, request: Any, blocks: Any, external: int) -> None:
        """Register the request and plan the load of its matched tokens."""
        self.requests[request.request_id] = request
        first = self.first.pop(request.request_id, 0)
        if external:
            ids = blocks.get_block_ids()
            chosen = self.needed(request, first, first + external // self.block)
            for _, key in chosen:
                self.stored.move_to_end(key)
            targets = [ids[group][number] for number, (group, _) in chosen]
            unreadable = self.unreadable(request, [number for number, _ in chosen])
            self.loads.append(PlannedLoad(request.request_id, targets, [key for _, key in chosen], unreadable))

    def unreadable(self, request: Any, numbers: list[int]) -> set[int]:
        """Return the places of the blocks of a load that fail: all, or the last one of each group."""
        which = request.num_prompt_tokens % LENGTHS
        if not self.failing or which == READABLE or request.request_id in self.tried:
            return set()
        self.tried.add(request.request_id)
        self.failed += 1
        return {place for place, number in enumerate(numbers) if which == 0 or number == max(numbers)}

    def step_transfers(self, scheduled: Any) -> StepTransfers:
        """Return the planned loads, and stores of all blocks that are full after this step.

        A step with a failing synchronous load stores nothing: requests that share its blocks compute wrong values.
        """
        self.note_blocks(scheduled)
        loads, self.loads = self.loads, []
        wrong = not self.asynchronous and any(load.unreadable for load in loads)
        stores: dict[Key, int] = {}
        for name, count in scheduled.num_scheduled_tokens.items() if not wrong else ():
            request = self.requests[name]
            full = (request.num_computed_tokens + count) // self.block
            for group, table in enumerate(self.tables[name]):
                for block, value in zip(table[:full], request.block_hashes[:full], strict=False):
                    if block != NULL and (group, value) not in self.stored:
                        stores[group, value] = block
        self.stored.update(dict.fromkeys(stores))
        evicted = [self.stored.popitem(last=False)[0] for _ in range(len(self.stored) - self.capacity)]
        return StepTransfers(loads, [(block, key) for key, block in stores.items()], evicted)

    def note_blocks(self, scheduled: Any) -> None:
        """Note the blocks that a step allocated, which vLLM tells the worker: all of a new or resumed request's."""
        for new in scheduled.scheduled_new_reqs:
            self.tables[new.req_id] = list(new.block_ids)
        cached = scheduled.scheduled_cached_reqs
        none: list[list[int]] = [[] for _ in self.windows]
        for name, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            before = none if name in cached.resumed_req_ids else self.tables[name]
            self.tables[name] = [[*old, *new] for old, new in zip(before, added or none, strict=True)]


class BlockStore:
    """The worker's side of the connector. `blocks`: key -> the stored block, one tensor per layer.

    Layers of other groups may share a tensor's memory or have no meaning at a block: they are copied with it.
    `by_request`: a failure is one of its request, not of its blocks.
    """

    def __init__(self, *, asynchronous: bool, by_request: bool = False) -> None:
        self.asynchronous, self.by_request = asynchronous, by_request
        self.tensors: list[torch.Tensor] = []
        self.blocks: dict[Key, list[torch.Tensor]] = {}
        self.copies: DeferredCopies[str] = DeferredCopies()
        self.failed: set[int] = set()
        self.failed_requests: set[str] = set()

    def load(self, loads: list[PlannedLoad]) -> None:
        """Execute loads now or, if asynchronous, later. Stored blocks are looked up now, before they can be evicted."""
        for load in loads:
            sources = [None if i in load.unreadable else self.blocks[key] for i, key in enumerate(load.keys)]

            def copy(load: PlannedLoad = load, sources: list[list[torch.Tensor] | None] = sources) -> None:
                for block, layers in zip(load.blocks, sources, strict=True):
                    if layers is None and self.by_request:
                        self.failed_requests.add(load.request)
                    elif layers is None:
                        self.failed.add(block)
                    else:
                        for tensor, layer in zip(self.tensors, layers, strict=True):
                            tensor[block] = layer

            if self.asynchronous:
                self.copies.submit(load.request, copy, polls_of(load.blocks))
            else:
                copy()

    def store(self, stores: list[tuple[int, Key]]) -> None:
        """Copy blocks from the pool to the tier."""
        for block, key in stores:
            self.blocks[key] = [tensor[block].clone() for tensor in self.tensors]
