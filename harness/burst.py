"""What goes on around a burst while its requests are in flight: a change in its midst, looks at the queue, a stall.

All of it happens between two looks at the engine, in one thread; what the engine's own threads tell arrives as counts.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from adapters.base import Capability, Engine, EngineError, Metrics
from harness.history import Identity, Outcome, Queue, Residence
from harness.workload import Burst, Meanwhile, SetAdapter

QUEUE_SECONDS = 0.2  # between two looks at the queue: a look costs a server as much as a token
FIRST_LOOK_SECONDS = 0.02  # a fast engine may have answered a crowd before the next one
QUEUE_REQUESTS = 4  # fewer at once are not worth a look


class Change:
    """A change in the midst of a burst, and which requests it overlapped."""

    def __init__(self, meanwhile: Meanwhile, make: Callable[[], None], clock: Callable[[], float]) -> None:
        self.change, self.after_tokens = meanwhile.change, meanwhile.after_tokens
        self.make, self.clock = make, clock
        self.due = meanwhile.after_tokens == 0
        self.tried = self.made = False
        self.problem: EngineError | None = None
        self.began = self.ended = 0.0

    def try_it(self) -> None:
        """Make the change, once. A refusal is kept for the step's record."""
        self.tried = True
        self.began = self.clock()
        try:
            self.make()
            self.made = True
        except EngineError as problem:
            self.problem = problem
        finally:
            self.ended = self.clock()

    def widen(self, outcome: Outcome, digest: str, load: int | None) -> Outcome:
        """Give a request that this change overlapped the new identity beside the old one.

        What a refused change left behind is unknown: then both may be right, also afterwards.
        """
        if not isinstance(self.change, SetAdapter) or outcome.residence.name != self.change.name:
            return outcome
        new = Identity(digest, outcome.residence.salt)
        if outcome.sent > self.ended and self.made:
            identities: tuple[Identity, ...] = (new,)
        elif outcome.finished < self.began:
            identities = outcome.identities
        else:
            identities = (*outcome.identities, new) if new not in outcome.identities else outcome.identities
        residence = outcome.residence
        if identities == (new,) and load is not None:
            residence = Residence(residence.name, load, residence.salt)
        return msgspec.structs.replace(outcome, identities=identities, residence=residence)


class Watch:
    """Looks after one burst. `stalled` is the queue at the moment when patience ended."""

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
        self.looks_at_queue = len(burst.requests) >= QUEUE_REQUESTS
        self.last_progress = clock()
        self.next_look = self.last_progress + FIRST_LOOK_SECONDS
        self.queue: list[Queue] = []
        self.stalled: Queue | None = None

    def on_token(self, number: int, count: int) -> None:
        """Tokens came, of any request; the first request's make a change due."""
        self.last_progress = self.clock()
        if self.change is not None and number == 0 and count >= self.change.after_tokens:
            self.change.due = True

    def between(self) -> None:
        """Called again and again while requests are in flight."""
        if self.change is not None and self.change.due and not self.change.tried:
            self.change.try_it()
            self.last_progress = self.clock()  # a slow load holds every request up: that is no stall of theirs
            return
        now = self.clock()
        if self.looks_at_queue and now >= self.next_look and self.stalled is None:
            self.next_look = now + QUEUE_SECONDS
            self.queue.append(self.look())
        if now - self.last_progress > self.stall_seconds and self.stalled is None:
            self.stalled = self.look()
            if self.engine.capabilities[Capability.SPAWNABLE].present:
                self.engine.stop()  # the only way to be rid of requests that never end

    def look(self) -> Queue:
        """The engine's queue now."""
        seen = self.metrics()
        return Queue(at=self.clock(), running=seen.running, waiting=seen.waiting, pool_usage=seen.pool_usage)
