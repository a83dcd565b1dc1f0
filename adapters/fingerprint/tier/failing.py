"""A second tier of ours, in the worker's memory, whose loads can be made to fail.

Blocks are kept under vLLM's own block hashes, so that it errs only where it is told to. Which loads fail follows from
the length of the prompt, so a counterexample repeats. A load fails once; a request that tries again is served.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from adapters.fingerprint.tier.copies import LateCopies
from adapters.fingerprint.tier.told import FailedLoads, FailedLoadsMetric

LENGTHS = 3  # of as many successive lengths one loads nothing, one all but its last block, and one everything:
READABLE = 1  # this one, like the prompts of 256 and 512 tokens that an engine is probed with


@dataclass
class Load:
    """Blocks for a request: where they go and what they hold; those in `unreadable` cannot be read."""

    request: str
    blocks: list[int]
    keys: list[bytes]
    unreadable: set[int]


@dataclass
class Moves(KVConnectorMetadata):
    """One step's loads, stores (block, key) and keys that the tier gives up, to be done in this order."""

    loads: list[Load] = field(default_factory=list)
    stores: list[tuple[int, bytes]] = field(default_factory=list)
    dropped: list[bytes] = field(default_factory=list)


class FailingConnector(KVConnectorBase_V1):
    """Options: `asynchronous` loads or not, `failing` or not, and how many `blocks` the tier holds."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.planner = Planner(
            block=int(vllm_config.cache_config.block_size),
            asynchronous=bool(options.get("asynchronous")),
            failing=bool(options.get("failing")),
            room=int(options.get("blocks", 10_000)),
        )
        self.keeper = Keeper(asynchronous=bool(options.get("asynchronous")))

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Where the scheduler keeps who holds what."""
        self.planner.manager = kv_cache_manager

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens behind the local hit, and whether they come later than in this step."""
        return self.planner.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """There are blocks for what was matched."""
        self.planner.plan(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Moves:
        """What the worker is to do in this step."""
        return self.planner.moves(scheduler_output)

    def get_kv_connector_stats(self) -> FailedLoads | None:
        """How many loads failed since this was last asked."""
        failed, self.planner.failed = self.planner.failed, 0
        return FailedLoads.of(failed) if failed else None

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:  # noqa: ARG002 - vLLM's
        """Stores are over when a step is: nothing holds the blocks."""
        self.planner.requests.pop(request.request_id, None)
        return False, None

    def reset_cache(self) -> bool:
        """Empty the tier: what the worker still keeps is never asked for again under a key that is not known."""
        self.planner.known.clear()
        return True

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> FailedLoads:
        """From what came over the wire."""
        return FailedLoads(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *given: Any) -> FailedLoadsMetric:
        """The server's counter."""
        return FailedLoadsMetric(*given)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The worker's tensors."""
        self.keeper.tensors = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:  # noqa: ARG002 - vLLM's
        """Load, or begin to."""
        self.keeper.load(self._get_connector_metadata().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads that a step reads are over when they have begun."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """All layers are saved together."""

    def wait_for_save(self) -> None:
        """Store what this step computed, then forget what the tier gives up."""
        moves = self._get_connector_metadata()
        self.keeper.store(moves.stores)
        for key in moves.dropped:
            self.keeper.kept.pop(key, None)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, set[str] | None]:  # noqa: ARG002 - vLLM's
        """Requests whose late loads have ended, well or not."""
        return None, set(self.keeper.finished()) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were to be loaded and could not be read."""
        bad, self.keeper.bad = self.keeper.bad, set()
        return bad


class Planner:
    """The scheduler's side: what the tier holds, and who is to get it."""

    def __init__(self, *, block: int, asynchronous: bool, failing: bool, room: int) -> None:
        self.block, self.asynchronous, self.failing, self.room = block, asynchronous, failing, room
        self.manager: Any = None
        self.known: OrderedDict[bytes, None] = OrderedDict()  # the least recently used first
        self.requests: dict[str, Any] = {}
        self.first: dict[str, int] = {}  # the block that a match begins at
        self.loads: list[Load] = []
        self.tried: set[str] = set()
        self.failed = 0

    def match(self, request: Any, local: int) -> tuple[int, bool]:
        """Whole blocks that are known behind the local ones. One token is left to be computed."""
        first = self.first[request.request_id] = local // self.block
        count = 0
        for key in request.block_hashes[first : (request.num_tokens - 1) // self.block]:
            if key not in self.known:
                break
            count += 1
        return count * self.block, self.asynchronous and count > 0

    def plan(self, request: Any, blocks: Any, external: int) -> None:
        """Note the request, and the load of what was matched."""
        self.requests[request.request_id] = request
        first = self.first.pop(request.request_id, 0)
        if external:
            (ids,) = blocks.get_block_ids()
            chosen = range(first, first + external // self.block)
            keys = [request.block_hashes[i] for i in chosen]
            for key in keys:
                self.known.move_to_end(key)
            unreadable = self.unreadable(request, len(keys))
            self.loads.append(Load(request.request_id, [ids[i] for i in chosen], keys, unreadable))

    def unreadable(self, request: Any, count: int) -> set[int]:
        """Which blocks of a load cannot be read."""
        which = request.num_prompt_tokens % LENGTHS
        if not self.failing or which == READABLE or request.request_id in self.tried:
            return set()
        self.tried.add(request.request_id)
        self.failed += 1
        return set(range(count)) if which == 0 else {count - 1}

    def moves(self, scheduled: Any) -> Moves:
        """The loads that were planned, and stores of all blocks that are full behind this step.

        Nothing is stored in a step with a load that fails at once: whoever shares its blocks computes from them.
        """
        loads, self.loads = self.loads, []
        spoilt = not self.asynchronous and any(load.unreadable for load in loads)
        stores: dict[bytes, int] = {}
        for name, count in scheduled.num_scheduled_tokens.items() if not spoilt else ():
            request = self.requests[name]
            (ids,) = self.manager.get_block_ids(name)
            full = (request.num_computed_tokens + count) // self.block
            for block, key in zip(ids[:full], request.block_hashes[:full], strict=False):
                if key not in self.known:
                    stores[key] = block
        self.known.update(dict.fromkeys(stores))
        dropped = [self.known.popitem(last=False)[0] for _ in range(len(self.known) - self.room)]
        return Moves(loads, [(block, key) for key, block in stores.items()], dropped)


class Keeper:
    """The worker's side: what the tier holds, by key, all layers of a block together."""

    def __init__(self, *, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self.tensors: list[torch.Tensor] = []
        self.kept: dict[bytes, list[torch.Tensor]] = {}
        self.copies: LateCopies[str] = LateCopies(1)
        self.bad: set[int] = set()

    def load(self, loads: list[Load]) -> None:
        """Now, or as late as a device may; what is read is read now, for the tier may give it up."""
        for load in loads:
            held = [None if i in load.unreadable else self.kept[key] for i, key in enumerate(load.keys)]

            def copy(load: Load = load, held: list[list[torch.Tensor] | None] = held) -> None:
                for block, layers in zip(load.blocks, held, strict=True):
                    if layers is None:
                        self.bad.add(block)
                    else:
                        for tensor, layer in zip(self.tensors, layers, strict=True):
                            tensor[block] = layer

            if self.asynchronous:
                self.copies.submit(load.request, copy)
            else:
                copy()

    def store(self, stores: list[tuple[int, bytes]]) -> None:
        """Copy blocks of the pool."""
        for block, key in stores:
            self.kept[key] = [tensor[block].clone() for tensor in self.tensors]

    def finished(self) -> list[str]:
        """Requests whose late loads have ended since this was last asked."""
        return self.copies.finished()
