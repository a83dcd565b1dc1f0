"""Records what the scheduler of the in-process engine does in its steps.

The recorder calls the scheduler's own methods through their class, so that it sees what injected faults changed. It
changes nothing. A step in which requests only decode costs it about a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coldproof.adapters.common.stepping import StepRecords
from coldproof.adapters.protocol.engine_steps import Admission, Chunk, EngineStep

EVICT = "_maybe_evict_cached_block"


class StepRecorder(StepRecords):
    """Wraps `schedule` of one scheduler, and the method of its block pool that evicts a block."""

    def __init__(self, scheduler: Any, clock: Callable[[], float]) -> None:
        super().__init__()
        self.scheduler, self.clock = scheduler, clock
        self.pool = scheduler.kv_cache_manager.block_pool
        self.block_size: int = scheduler.block_size
        self.known: set[str] = set()  # requests that ran before
        scheduler.schedule = self.schedule
        if hasattr(self.pool, EVICT):
            setattr(self.pool, EVICT, self.evict)

    def evict(self, block: Any) -> bool:
        """Evict a block if it is cached, and count it."""
        end = getattr(block, "block_hash_num_tokens", None)
        evicted: bool = getattr(type(self.pool), EVICT)(self.pool, block)
        self.evicted += evicted
        self.evicted_first += evicted and end is not None and end <= self.block_size
        return evicted

    def schedule(self, *args: Any, **named: Any) -> Any:
        """Schedule a step, and record it unless requests only decode."""
        output = type(self.scheduler).schedule(self.scheduler, *args, **named)
        for name in output.finished_req_ids:
            self.known.discard(name)
            self.targets.pop(name, None)
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if output.scheduled_new_reqs or resumed or self.targets or self.evicted:
            self.record(output, resumed)
        return output

    def record(self, output: Any, resumed: set[str]) -> None:
        """Record a step. After it was scheduled, a request counts its new tokens as computed."""
        requests, counts = self.scheduler.requests, output.num_scheduled_tokens
        begun = [new.req_id for new in output.scheduled_new_reqs]
        begun += [name for name in output.scheduled_cached_reqs.req_ids if name in resumed]
        self.targets |= {name: requests[name].num_tokens for name in begun}
        chunks = [
            Chunk(name, requests[name].num_computed_tokens - counts[name], requests[name].num_computed_tokens, target)
            for name, target in self.targets.items()
            if name in counts
        ]
        starts = {chunk.request: chunk.start for chunk in chunks}
        running, waiting = self.scheduler.get_request_counts()
        step = EngineStep(
            at=self.clock(),
            admitted=tuple(Admission(name, starts[name], name in self.known) for name in begun),
            chunks=tuple(chunks),
            decoding=len(counts) - len(chunks),
            waiting=waiting,
            running=running,
            free=self.pool.get_num_free_blocks(),
            usage=self.scheduler.kv_cache_manager.usage,
            evicted=self.evicted,
            evicted_first=self.evicted_first,
        )
        self.known.update(begun)
        self.add(step)
