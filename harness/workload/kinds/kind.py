"""What a kind of step says about itself. Rooms ask a step and do not match its class.

What performs a step on an engine is registered in `harness/execution/runner/performers`. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar, Self

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.weights import SleepPart


class Stop(enum.Enum):
    """What stopped an engine. Each is ended by a step of its own."""

    PAUSE = "a pause"
    SLEEP = "a sleep"


class Activity(msgspec.Struct, frozen=True):
    """What an engine does at a moment. `by`: what stopped it; None while it serves. `asleep`: what it cannot use.

    `lacks_weights`: they were discarded and not loaded again, so that no answer would mean anything.
    """

    by: Stop | None = None
    asleep: frozenset[SleepPart] = frozenset()
    lacks_weights: bool = False

    @property
    def serves(self) -> bool:
        """Return whether a request would be answered by a model with weights."""
        return self.by is None and not self.lacks_weights


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of a workload have left, as far as a later step depends on it.

    `loaded`: the names with an adapter. `saved`: the names of saved states. `turns`: the number of the latest turn of
    each session. `ended`: the sessions that were closed or aborted.
    """

    loaded: frozenset[str] = frozenset()
    saved: frozenset[str] = frozenset()
    activity: Activity = Activity()
    turns: Mapping[str, int] = {}
    ended: frozenset[str] = frozenset()

    @property
    def open_sessions(self) -> frozenset[str]:
        """Return the sessions that hold blocks."""
        return frozenset(self.turns) - self.ended


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the report's table of adapter changes and resets.

    `resets`: it counts as refused unless the history has a successful reset of the same time.
    """

    kind: str
    name: str = ""
    content: str = ""
    resets: bool = False


class StepKind(msgspec.Struct, frozen=True):
    """A step that is not a burst of requests. A kind overrides what differs from the usual.

    `ends_stop`: it is made even after an error, so that no request waits forever.
    `reaches_every_rank`: each rank of an engine has to make it.
    `spares_sessions`: it is possible while a session is open. Nothing else can be said of an engine that holds blocks
    and is idle.
    `varies`: a workload may be run with its steps in another order. What is promised after some kinds depends on it.
    `requests`, `meanwhile`, `changes`, `ended_session`: as a burst's, so that a room may go through the steps without
    a look at their classes.
    """

    requests: ClassVar[tuple[()]] = ()
    meanwhile: ClassVar[None] = None
    ends_stop: ClassVar[bool] = False
    reaches_every_rank: ClassVar[bool] = False
    spares_sessions: ClassVar[bool] = False
    varies: ClassVar[bool] = False

    @property
    def changes(self) -> tuple[Self, ...]:
        """Return the step itself; a burst returns the changes that are made during it."""
        return (self,)

    def describe(self) -> str:
        """Return the step in one line."""
        raise NotImplementedError(f"{type(self).__name__} has no description")

    def after(self, now: State) -> State | None:
        """Return the state after this step, between bursts; None if it is impossible in this state."""
        return now

    def during(self, now: State) -> State | None:
        """Return the state after this change during a burst; None if it is impossible in this state."""
        return self.after(now)

    def renamed(self, _names: Mapping[str | None, str], /) -> Self:
        """Return the step with other names of adapters: a mapping from old to new ones. Names that it lacks stay."""
        return self

    def mark(self) -> Mark | None:
        """Return the step's row in the table of changes; None for a step that is shown among the steps alone."""
        return None

    def clears_cache(self) -> bool:
        """Return whether it clears the prefix cache of a running engine. The runner records that as a reset."""
        return False

    @property
    def ended_session(self) -> str | None:
        """Return the session that takes no more turns after this step."""
        return None

    def needs(self) -> tuple[Capability, ...]:
        """Return the capabilities without which an engine has nothing on which the step could be performed."""
        return ()
