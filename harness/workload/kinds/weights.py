"""Updates of the weights of the base model, pauses and sleeps.

Each pause is resumed and each sleep ended, and nothing else is. Otherwise requests would wait forever.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.harness.workload.kinds.kind import Activity, State, StepKind, Stop


def acting(now: State, activity: Activity) -> State:
    """Return the state with another activity."""
    return msgspec.structs.replace(now, activity=activity)


class UpdateWeights(StepKind, frozen=True, kw_only=True, tag="update_weights"):
    """Replace the weights of the base model by a version, by its symbolic name. No cache is reset."""

    reaches_every_rank: ClassVar[bool] = True

    version: str
    route: WeightRoute = WeightRoute.PATH

    def describe(self) -> str:
        """Return the step in one line."""
        return f"new weights {self.version!r}: {self.route.value}"

    def after(self, now: State) -> State | None:
        """Return the state with weights, for which there must be room: they are not asleep."""
        loads = SleepPart.WEIGHTS not in now.activity.asleep
        return acting(now, msgspec.structs.replace(now.activity, lacks_weights=False)) if loads else None


class Pause(StepKind, frozen=True, kw_only=True, tag="pause"):
    """Pause generation. `clear`: also clear the prefix cache."""

    reaches_every_rank: ClassVar[bool] = True

    mode: PauseMode
    clear: bool

    def describe(self) -> str:
        """Return the step in one line."""
        return f"pause with mode {self.mode.value}, {'clear' if self.clear else 'keep'} the cache"

    def after(self, now: State) -> State | None:
        """Return the state of a paused engine. It must serve before."""
        return acting(now, Activity(Stop.PAUSE)) if now.activity.serves else None

    def clears_cache(self) -> bool:
        """Return whether the prefix cache is cleared."""
        return self.clear


class Resume(StepKind, frozen=True, tag="resume"):
    """Resume after a pause."""

    ends_stop: ClassVar[bool] = True

    def describe(self) -> str:
        """Return the step in one line."""
        return "resume"

    def after(self, now: State) -> State | None:
        """Return the state of a serving engine. It must be paused before."""
        return acting(now, Activity()) if now.activity.by is Stop.PAUSE else None


class Sleep(StepKind, frozen=True, tag="sleep"):
    """Let the engine sleep. From level 1 on, it discards its KV; at level 2 also its weights."""

    reaches_every_rank: ClassVar[bool] = True

    level: int

    def describe(self) -> str:
        """Return the step in one line."""
        return f"sleep at level {self.level}"

    def after(self, now: State) -> State | None:
        """Return the state of a sleeping engine. It must serve before."""
        asleep = frozenset({SleepPart.WEIGHTS, SleepPart.KV} if self.level else ())
        return acting(now, Activity(Stop.SLEEP, asleep, self.level > 1)) if now.activity.serves else None

    def clears_cache(self) -> bool:
        """Return whether the KV is discarded."""
        return self.level > 0


class Wake(StepKind, frozen=True, omit_defaults=True, tag="wake"):
    """Wake a part of the engine up. The weights alone are woken up to be loaded again before the rest."""

    ends_stop: ClassVar[bool] = True

    part: SleepPart = SleepPart.ALL

    def describe(self) -> str:
        """Return the step in one line."""
        return "wake up" if self.part is SleepPart.ALL else f"wake up {self.part.value}"

    def after(self, now: State) -> State | None:
        """Return the state in which the part is awake. It must be asleep before; the last part ends the sleep."""
        was, every = now.activity, self.part is SleepPart.ALL
        if was.by is not Stop.SLEEP or not (every or self.part in was.asleep):
            return None
        left = frozenset() if every else was.asleep - {self.part}
        return acting(now, Activity(was.by if left else None, left, was.lacks_weights))
