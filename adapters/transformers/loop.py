"""Executes Transformers' generation loop one pass at a time, with its own method `pause`, and records hidden events.

`ContinuousBatchingManager` runs a thread. Here it is always paused, except between the end of one pause and the start
of the next, which is one pass of its loop. So arrivals, aborts and adapter changes happen at known steps, and a run
repeats. One driver thread makes all calls, and callers wait for it for at most `patience` seconds: a loop that hangs is
reported and does not block the caller.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from coldproof.adapters.protocol.engine import EngineDied, EngineSilent
from coldproof.adapters.transformers.releases import fatal_error, pause_of, usage
from coldproof.adapters.transformers.request import CHILD
from coldproof.adapters.transformers.steps import StepRecorder

PATIENCE = 60.0  # seconds, for one call of the engine
STOP_SECONDS = 5.0
# While a CUDA graph is captured, no other thread of the process may compute on the GPU: two engines that start side by
# side fail with "operation not permitted when stream is capturing", and every later one, too (seen on an H200).
CAPTURES = threading.Lock()
OPEN = contextlib.nullcontext()  # no lock
Done = TypeVar("Done")


class Driver:
    """A daemon thread that makes one call after the other. The threads that it starts are daemons, too, so a loop that
    hangs does not prevent the end of the process.

    `gate`: each call is made under this lock.
    """

    def __init__(self, patience: float = PATIENCE, gate: AbstractContextManager[object] = OPEN) -> None:
        self.patience, self.gate = patience, gate
        self.work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True, name="transformers-driver").start()

    def do(self, call: Callable[[], Done]) -> Done:
        """Make the call in the thread and return its result. Raises its exception, or EngineSilent on timeout."""
        done: Future[Done] = Future()
        self.work.put((call, done))
        try:
            return done.result(self.patience)
        except TimeoutError as problem:
            if done.done():
                raise
            message = f"the generation loop did not reach its next pause in {self.patience:.0f} s"
            raise EngineSilent(message) from problem

    def end(self) -> None:
        """End the thread after the calls that are queued."""
        self.work.put(None)

    def _serve(self) -> None:
        while (item := self.work.get()) is not None:
            call, done = item
            try:
                with self.gate:
                    result = call()
                done.set_result(result)
            except BaseException as problem:  # noqa: BLE001 - `do` raises it
                done.set_exception(problem)


class EngineHooks:
    """Records what the engine does not report: hits, preemptions, steps, and which requests have been in a batch.

    The scheduler's active requests do not show the latter: a request that shares blocks is active before it is in a
    batch. The hooks wrap methods of this engine and do not change what they do.
    """

    def __init__(self, processor: Any) -> None:
        self.hits: dict[str, int] = {}  # request -> cached tokens when it was scheduled for the first time
        self.queued: Counter[str] = Counter()
        self.started: set[str] = set()
        self.steps = StepRecorder(processor.cache)
        search, queue_up = processor.cache.search_prefix_match, processor.scheduler.add_waiting_request
        choose = processor.scheduler.schedule_batch

        def search_prefix_match(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            if self.queued[request_id] <= 1:
                # Up to 5.17, a prompt that is found as a whole is cut afterwards: its last token is computed.
                self.hits[request_id] = min(found, len(prompt_ids) - 1)
            return found

        def add_waiting_request(state: Any) -> None:
            self.queued[state.request_id] += 1
            self.started.discard(state.request_id)
            queue_up(state)

        def schedule_batch(*limits: int) -> Any:
            chosen = choose(*limits)
            batch = chosen[0] or ()
            # A child is no request of the caller's, and its prompt is its parent's.
            own = {future.state.request_id for future in batch if CHILD not in future.state.request_id}
            begun = own - self.started
            self.steps.record(batch, {name: self.preemptions(name) > 0 for name in begun})
            self.started |= begun
            return chosen

        processor.scheduler.schedule_batch = schedule_batch
        processor.cache.search_prefix_match = search_prefix_match
        processor.scheduler.add_waiting_request = add_waiting_request

    def preemptions(self, request_id: str) -> int:
        """Return how often the engine preempted a request."""
        return max(0, self.queued[request_id] - 1)

    def forget(self, request_id: str) -> None:
        """Remove the records of a request."""
        self.hits.pop(request_id, None)
        self.queued.pop(request_id, None)
        self.started.discard(request_id)
        self.steps.forget(request_id)


class Loop:
    """The manager of one model. Call its methods only in the driver's thread."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._pauses, self._step_lock = pause_of(manager)
        manager.start()
        self._pause = self._pauses()
        self._wait_for_pause()
        self.processor: Any = manager.batch_processor
        self.hooks = EngineHooks(self.processor)

    def step(self) -> None:
        """Execute one pass of the loop. Raises EngineDied if the loop has ended.

        The loop reads new requests and aborts at the end of a pass, so they take effect in the next pass.
        """
        with self._step_lock:
            self._pause.__exit__(None, None, None)
            self._pause = self._pauses()
            self._wait_for_pause()

    def _wait_for_pause(self) -> None:
        try:
            self._pause.__enter__()
        except RuntimeError as problem:
            why = fatal_error(self.manager)
            message = "the generation loop has ended" if why is None else f"the generation loop failed: {why}"
            raise EngineDied(message) from problem

    def outputs(self) -> list[Any]:
        """Return and remove the new outputs."""
        waiting, outputs = self.manager.output_router.output_queue, []
        with contextlib.suppress(queue.Empty):
            while True:
                outputs.append(waiting.get_nowait())
        return outputs

    def usage(self) -> float:
        """Return the fraction of the pool that requests use, without cached blocks that no request uses."""
        return usage(self.processor.cache)

    def empty_cache(self) -> bool:
        """Empty the prefix cache with the engine's reset, which also frees the blocks of all requests.

        Return whether the cache is empty.
        """
        self.processor.cache.reset()
        return not any(each.ledger.hash_to_block for each in self.processor.cache.cache_allocators.values())

    def stop(self) -> None:
        """Stop the manager and its thread."""
        with contextlib.suppress(RuntimeError):  # raised if the loop has ended already
            self._pause.__exit__(None, None, None)
        self.manager.stop(block=True, timeout=STOP_SECONDS, hard_stop=True)
        self.manager.destroy()
        self.processor = None  # freed now instead of at the end of the interpreter
