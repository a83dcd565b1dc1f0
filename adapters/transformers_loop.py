"""Transformers' generation loop, led one step at a time through its own `pause`, and watched where it tells nothing.

`ContinuousBatchingManager` runs a thread of its own. It stands still here except between leaving a pause and entering
the next one, which is one pass of its loop: so arrivals, aborts and adapter changes fall on steps and a run repeats.
Everything is done by one thread of ours, and nobody waits for that longer than `patience`: a loop that hangs is a
finding, not a hang of the caller.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from adapters.base import EngineDied, EngineSilent

PATIENCE = 60.0  # seconds, for whatever the engine is asked
STOP_SECONDS = 5.0
Done = TypeVar("Done")


class Driver:
    """A thread that does one thing after the other. Threads that it starts are daemons as it is one: a loop that hangs
    does not keep the process from ending."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="transformers-driver").start()

    def do(self, what: Callable[[], Done]) -> Done:
        """Have it done, and wait. Raises what it raises, or EngineSilent when it takes too long."""
        done: Future[Done] = Future()
        self.work.put((what, done))
        try:
            return done.result(self.patience)
        except TimeoutError as problem:
            if done.done():
                raise
            said = f"the generation loop did not come to its next pause in {self.patience:.0f} s"
            raise EngineSilent(said) from problem

    def end(self) -> None:
        """Nothing more is going to be asked."""
        self.work.put(None)

    def _serve(self) -> None:
        while (order := self.work.get()) is not None:
            what, done = order
            try:
                done.set_result(what())
            except BaseException as problem:  # noqa: BLE001 - it is raised where the result is waited for
                done.set_exception(problem)


class Watched:
    """What the engine does and tells nobody: prefix hits, requests that it takes out of the batch and queues again, and
    who has been in a batch since: a request that shares somebody's blocks counts as active before it gets any further.

    These methods are replaced on this one engine by ones that do the same and note it.
    """

    def __init__(self, processor: Any) -> None:
        self.hits: dict[str, int] = {}  # tokens that a request found when it was let in for the first time
        self.queued: Counter[str] = Counter()
        self.begun: set[str] = set()
        search, queue_up = processor.cache.search_prefix_match, processor.scheduler.add_waiting_request
        choose = processor.scheduler.schedule_batch

        def search_prefix_match(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            if self.queued[request_id] <= 1:
                self.hits[request_id] = found
            return found

        def add_waiting_request(state: Any) -> None:
            self.queued[state.request_id] += 1
            self.begun.discard(state.request_id)
            queue_up(state)

        def schedule_batch(*limits: int) -> Any:
            chosen = choose(*limits)
            self.begun |= {future.state.request_id for future in chosen[0] or ()}
            return chosen

        processor.scheduler.schedule_batch = schedule_batch
        processor.cache.search_prefix_match = search_prefix_match
        processor.scheduler.add_waiting_request = add_waiting_request

    def preemptions(self, request_id: str) -> int:
        """How often the engine took a request out of the batch again."""
        return max(0, self.queued[request_id] - 1)

    def forget(self, request_id: str) -> None:
        """It is over."""
        self.hits.pop(request_id, None)
        self.queued.pop(request_id, None)
        self.begun.discard(request_id)


class Loop:
    """The manager of one model. All methods but the constructor's belong to the driver's thread."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        manager.start()
        self._pause = manager.pause()
        self._entered()
        self.processor: Any = manager.batch_processor
        self.watched = Watched(self.processor)

    def step(self) -> None:
        """One pass of the loop. Raises EngineDied when it ended instead.

        Requests and aborts are fetched at the end of a pass, before the pause: they take effect with the pass after.
        """
        # Leaving and asking for the next pause must be one act, or the loop may run on between the two.
        with getattr(self.manager.background_thread_status, "_condition", contextlib.nullcontext()):
            self._pause.__exit__(None, None, None)
            self._pause = self.manager.pause()
            self._entered()

    def _entered(self) -> None:
        try:
            self._pause.__enter__()
        except RuntimeError as problem:
            why = self.manager.background_thread_status.fatal_error
            said = "the generation loop has ended" if why is None else f"the generation loop failed: {why}"
            raise EngineDied(said) from problem

    def outputs(self) -> list[Any]:
        """What has come since this was last asked."""
        waiting, said = self.manager.output_router.output_queue, []
        with contextlib.suppress(queue.Empty):
            while True:
                said.append(waiting.get_nowait())
        return said

    def usage(self) -> float:
        """The share of the pool that requests hold. What is only kept for reuse can be had at any time."""
        cache = self.processor.cache
        whole = cache.num_sectors * cache.bytes_per_sector
        kept = sum(len(each.ledger.cached_blocks) * each.bytes_per_block for each in cache.cache_allocators.values())
        used: float = 1.0 - cache.compute_free_capacity() - kept / whole
        return round(used, 6)

    def empty(self) -> bool:
        """Empty the prefix cache with the engine's own reset, which takes every request's blocks, too; and say whether
        nothing can be found any more."""
        self.processor.cache.reset()
        return not any(each.ledger.hash_to_block for each in self.processor.cache.cache_allocators.values())

    def stop(self) -> None:
        """End the thread."""
        with contextlib.suppress(RuntimeError):  # of a loop that has ended already
            self._pause.__exit__(None, None, None)
        self.manager.stop(block=True, timeout=STOP_SECONDS, hard_stop=True)
        self.manager.destroy()
        self.processor = None  # collected now, not as the interpreter ends
