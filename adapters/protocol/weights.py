"""Weights that change in a live engine: routes of an update, modes of a pause, and what an engine promises after it.

An engine does not have to forget its KV when its weights change. It promises that for some action: a cache reset, a
pause that clears the cache, or another salt.
"""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable


class WeightRoute(enum.StrEnum):
    """How new weights reach the engine."""

    PATH = "reload from another path"
    SAME_PATH = "reload from the same path with changed files"
    IN_PLACE = "change in place"
    TRANSFER = "weight transfer"


class PauseMode(enum.StrEnum):
    """What a pause does with the requests in flight."""

    ABORT = "abort"  # they end at once
    WAIT = "wait"  # they end as usual; then the pause begins
    KEEP = "keep"  # they stay, and go on after the pause


class SleepPart(enum.StrEnum):
    """What a wake-up brings back."""

    ALL = "everything"
    WEIGHTS = "the weights"
    KV = "the KV cache"


class WeightPolicy(enum.StrEnum):
    """What an engine promises after an update of its weights."""

    INVALIDATES = "invalidates"  # nothing computed with other weights is used again
    ON_RESET = "on reset"  # the same, once a reset, a pause or a sleep has cleared the cache
    IN_SALT = "version in the salt"  # the same, for requests with a salt that no request used before the update


@runtime_checkable
class ChangesWeights(Protocol):
    """An engine whose weights can change while it runs (WEIGHT_UPDATES).

    Both methods raise EngineDied when the engine terminated and RequestRefused when it refuses.
    """

    def update_weights(self, path: str, route: WeightRoute) -> None:
        """Load the weights in a folder. Return after the engine acknowledged it. Must not call a reset beside it."""

    def weights_checksum(self) -> str | None:
        """Return a checksum of the weights that the engine computes from them; None if it has none."""


@runtime_checkable
class FlushesOnUpdate(Protocol):
    """An engine whose updates clear the prefix cache if the caller wants that. `flush_on_update`: whether they do."""

    flush_on_update: bool


def flush_with_updates(engine: object, policy: WeightPolicy) -> None:
    """Let an engine's updates clear the cache only if that is the promise that is tested. Most have no such choice."""
    if isinstance(engine, FlushesOnUpdate):
        engine.flush_on_update = policy is WeightPolicy.INVALIDATES


@runtime_checkable
class Pauses(Protocol):
    """An engine whose generation can be paused (PAUSE_ABORT, PAUSE_WAIT, PAUSE_KEEP).

    Both methods raise EngineDied when the engine terminated and RequestRefused when it refuses.
    """

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        """Pause. `clear`: also clear the prefix cache. Return after the engine confirmed both."""

    def resume(self) -> None:
        """Resume what was paused, and serve the requests that came meanwhile."""


@runtime_checkable
class Sleeps(Protocol):
    """An engine that can release its memory while it is idle (SLEEP).

    Both methods raise EngineDied when the engine terminated and RequestRefused when it refuses.
    """

    def sleep(self, level: int) -> None:
        """Sleep. Level 0 only stops the scheduler; from level 1 on, the engine discards its KV. Level 2 also discards
        the weights (SLEEP_DISCARDS): after waking up, they have to be loaded again.
        """

    def wake(self, part: SleepPart = SleepPart.ALL) -> None:
        """Wake a part up. Serve requests again once everything is awake."""
