"""Records what the scheduler of Transformers' continuous batching does in its steps.

Its gauges are not recorded: what the engine shows of them is computed from the same facts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coldproof.adapters.common.stepping import StepRecords
from coldproof.adapters.protocol.engine_steps import Admission, Chunk, EngineStep
from coldproof.adapters.transformers.releases import usage

HASHES = "transformers.generation.continuous_batching.cache_allocators.cache_allocator"  # not there up to 5.17


class StepRecorder(StepRecords):
    """The steps of one engine, from the batches that its scheduler chooses, and the evictions of its cache.

    `at`: the engine's time of the next step, in seconds. `pool_blocks`: the blocks of the pool, None if unknown.
    """

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.cache = cache
        self.at = 0.0
        self.pool_blocks: int | None = None
        self.first_hashes: set[int] = set()  # of the first blocks of all sequences
        if hasattr(cache, "evict_cached_blocks"):
            self.watch_evictions(importlib.import_module(HASHES).compute_block_hash)

    def forget(self, request_id: str) -> None:
        """Remove a request that has ended."""
        self.targets.pop(request_id, None)

    def watch_evictions(self, hash_of: Callable[[None, list[int]], int]) -> None:
        """Count the blocks that the cache evicts. Its first blocks are known by their hashes, which have no parent."""
        complete, evict = self.cache.mark_complete_blocks, self.cache.evict_cached_blocks

        def mark_complete_blocks(state: Any, blocks: Mapping[str, int]) -> None:
            for name, count in blocks.items():
                page = self.cache.cache_allocators[name].tokens_per_page
                if state.current_len() // page == count:  # the first one is among them
                    self.first_hashes.add(hash_of(None, (state.initial_tokens + state.generated_tokens)[:page]))
            complete(state, blocks)

        def evict_cached_blocks() -> Any:
            self.count_evictions()
            return evict()

        self.cache.mark_complete_blocks, self.cache.evict_cached_blocks = mark_complete_blocks, evict_cached_blocks

    def count_evictions(self) -> None:
        """Count the blocks that the cache is about to evict: all that no request uses."""
        for allocator in self.cache.cache_allocators.values():
            ledger = allocator.ledger
            hashes = [ledger.block_to_hash[block] for block in ledger.cached_blocks]
            self.evicted += len(hashes)
            self.evicted_first += len(self.first_hashes.intersection(hashes))

    def record(self, batch: Sequence[Any], begun: Mapping[str, bool]) -> None:
        """Record a batch, unless its requests only decode. The engine has not computed it yet.

        `begun`: the requests that begin to run, and whether they ran before.
        """
        chunks = []
        for future in batch:
            state, name = future.state, future.state.request_id
            start = state.position_offset
            end = start + len(state.tokens_to_process)
            if name in begun:
                self.targets[name] = end + len(state.remaining_prefill_tokens)
            if name in self.targets:
                chunks.append(Chunk(name, start, end, self.targets[name]))
        admitted = [Admission(one.request, one.start, begun[one.request]) for one in chunks if one.request in begun]
        self.add(
            EngineStep(
                at=self.at,
                admitted=tuple(admitted),
                chunks=tuple(chunks),
                decoding=len(batch) - len(chunks),
                free=round((1 - usage(self.cache)) * (self.pool_blocks or 0)),
                evicted=self.evicted,
                evicted_first=self.evicted_first,
            )
        )
