"""Monitors a burst while its requests are in flight: makes a change, samples the queue, detects a stall.

Everything runs in one thread, between two polls of the engine. Tokens arrive as counts.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, EngineError
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.history.records import Identity, Outcome, QueueSample
from coldproof.harness.workload.steps import Burst, Meanwhile, SetAdapter
from coldproof.harness.workload.steps import Change as StepChange

QUEUE_SECONDS = 0.2  # between two samples of the queue: a sample costs a server as much as a token
FIRST_SAMPLE_SECONDS = 0.02  # a fast engine may have answered the whole burst before the second sample
QUEUE_REQUESTS = 4  # the queue of a smaller burst is not sampled


class Change:
    """A change during a burst, with those that follow it, and the requests that it overlaps."""

    def __init__(self, meanwhile: Meanwhile, make: Callable[[StepChange], object], clock: Callable[[], float]) -> None:
        self.change, self.after_tokens = meanwhile.change, meanwhile.after_tokens
        self.then, self.gap_seconds = list(meanwhile.then), meanwhile.gap_ms / 1000
        self.make, self.clock = make, clock
        self.due = meanwhile.after_tokens == 0
        self.tried = self.made = False
        self.problem: EngineError | None = None
        self.began = self.ended = self.latest = 0.0

    def attempt(self) -> None:
        """Make the change, once. An error is kept for the step's record."""
        self.tried = True
        self.began = self.clock()
        try:
            self.make(self.change)
            self.made = True
        except EngineError as problem:
            self.problem = problem
        finally:
            self.ended = self.latest = self.clock()

    def follow_up(self) -> bool:
        """Make the next of the further changes if it is due. Return whether one was made.

        After an error, only what ends a pause or a sleep is still made, so that no request waits forever.
        """
        if not self.tried or not self.then or self.clock() < self.latest + self.gap_seconds:
            return False
        change = self.then.pop(0)
        if self.problem is None or change.ends_stop:
            try:
                self.make(change)
            except EngineError as problem:
                self.problem = self.problem or problem
        self.latest = self.clock()
        return True

    def complete(self) -> None:
        """Make all changes that were not made while requests ran."""
        if not self.tried:
            self.attempt()
        self.gap_seconds = 0.0
        while self.follow_up():
            pass

    def widen(self, outcome: Outcome, digest: str, load: int | None) -> Outcome:
        """Return the outcome with the new identity in addition to the old one, if this change overlapped the request.

        After a refused change, both identities may be right for later requests as well.
        """
        if not isinstance(self.change, SetAdapter) or outcome.partition.name != self.change.name:
            return outcome
        new = Identity(digest, outcome.partition.salt)
        if outcome.sent > self.ended and self.made:
            identities: tuple[Identity, ...] = (new,)
        elif outcome.finished < self.began:
            identities = outcome.identities
        else:
            identities = (*outcome.identities, new) if new not in outcome.identities else outcome.identities
        partition = outcome.partition
        if identities == (new,) and load is not None:
            partition = msgspec.structs.replace(partition, load=load, updates=0)
        return msgspec.structs.replace(outcome, identities=identities, partition=partition)


class BurstMonitor:
    """Monitors one burst. `stalled` is the queue at the time when a stall was detected; None if there was none."""

    def __init__(
        self,
        burst: Burst,
        engine: Engine,
        *,
        change: Change | None,
        clock: Callable[[], float],
        metrics: Callable[[], Metrics],
        stall_seconds: float,
    ) -> None:
        self.engine, self.change, self.clock, self.metrics = engine, change, clock, metrics
        self.stall_seconds = stall_seconds
        self.samples_queue = len(burst.requests) >= QUEUE_REQUESTS
        self.last_progress = clock()
        self.next_sample = self.last_progress + FIRST_SAMPLE_SECONDS
        self.queue: list[QueueSample] = []
        self.stalled: QueueSample | None = None

    def on_token(self, number: int, count: int) -> None:
        """Note the progress of a request. The tokens of the first request may make the change due."""
        self.last_progress = self.clock()
        if self.change is not None and number == 0 and count >= self.change.after_tokens:
            self.change.due = True

    def between(self) -> None:
        """Make the change, sample the queue or detect a stall, if due. Called repeatedly during the burst."""
        if self.make_changes():
            self.last_progress = self.clock()  # a slow load delays every request: that is not a stall
            return
        now = self.clock()
        if self.samples_queue and now >= self.next_sample and self.stalled is None:
            self.next_sample = now + QUEUE_SECONDS
            self.queue.append(self.sample())
        if now - self.last_progress > self.stall_seconds and self.stalled is None:
            self.stalled = self.sample()
            if self.engine.capabilities[Capability.SPAWNABLE].present:
                self.engine.stop()  # the only way to end requests that never end by themselves

    def make_changes(self) -> bool:
        """Make the changes that are due. Return whether any was made."""
        change = self.change
        if change is None or not change.due:
            return False
        made = not change.tried
        if made:
            change.attempt()
        while change.follow_up():
            made = True
        return made

    def sample(self) -> QueueSample:
        """Return the current state of the engine's queue."""
        seen = self.metrics()
        return QueueSample(at=self.clock(), running=seen.running, waiting=seen.waiting, pool_usage=seen.pool_usage)
