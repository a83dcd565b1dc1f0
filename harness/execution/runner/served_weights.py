"""Changes the weights of an engine during one run, pauses it and lets it sleep; records all of it.

At the end of the run, the engine serves the weights with which it was started, and is neither paused nor asleep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.engine import Engine, EngineError, RequestRefused
from coldproof.adapters.protocol.resets import SCOPE_CAPABILITIES, ResetScope
from coldproof.adapters.protocol.weights import ChangesWeights, PauseMode, Pauses, SleepPart, Sleeps, WeightRoute
from coldproof.harness.execution.models.versions import Versions, place_version
from coldproof.harness.history.records import PauseRecord, ResetRecord, WeightUpdate
from coldproof.harness.workload.steps import START_WEIGHTS, Pause, Sleep, UpdateWeights, Wake
from coldproof.harness.workload.tokens import wire_name

SAME_PATH = "weights"  # the symbolic path whose files change


def cleared_beside(engine: Engine) -> tuple[ResetScope, ...]:
    """Return the caches of images that a pause clears with the prefix cache: those that this engine can reset."""
    caches = (ResetScope.ENCODER, ResetScope.PROCESSOR)
    return tuple(one for one in caches if engine.capabilities[SCOPE_CAPABILITIES[one]].present)


class ServedWeights:
    """The weights that an engine serves in one run. Raises what the engine raises.

    `on_clear` records a reset: a pause or a sleep that clears the cache is one.
    """

    def __init__(
        self,
        engine: Engine,
        versions: Versions,
        folder: Path,
        nonce: str,
        *,
        clock: Callable[[], float],
        on_clear: Callable[[ResetRecord], None],
    ) -> None:
        self.engine, self.versions = engine, versions
        self.path = folder / wire_name(SAME_PATH, nonce)
        self.clock, self.on_clear = clock, on_clear
        self.version = START_WEIGHTS
        self.asleep: set[SleepPart] = set()
        self.discarded = False  # whether a sleep has discarded the weights, and none were loaded since
        self.start_checksum: str | None = None
        self.updates: list[WeightUpdate] = []
        self.pauses: list[PauseRecord] = []

    @property
    def digest(self) -> str | None:
        """Return the digest of the current weights; None for those of the start."""
        return self.digest_of(self.version)

    def digest_of(self, version: str) -> str | None:
        """Return the digest of a version; None for the weights of the start."""
        return None if version == START_WEIGHTS else self.versions[version].digest

    def update(self, step: UpdateWeights, sides: Iterable[ChangesWeights] = ()) -> None:
        """Load a version by a route, on each of `sides` or on the engine, and record it as one update.

        The checksum is taken before the first update and after each.
        """
        if not isinstance(self.engine, ChangesWeights):
            raise RequestRefused(501, self.engine.capabilities[Capability.WEIGHT_UPDATES].evidence)
        self.note_start(self.engine)
        files = self.versions[step.version]
        path = place_version(files, self.path) if step.route is WeightRoute.SAME_PATH else files.folder.resolve()
        began = self.clock()
        try:
            for engine in sides or (self.engine,):
                engine.update_weights(str(path), step.route)
                self.version, self.discarded = step.version, False  # also of one side: it has to be restored at the end
        except EngineError as problem:
            self.record(step, began, error=str(problem))
            raise
        self.record(step, began)
        self.updates[-1] = msgspec.structs.replace(self.updates[-1], checksum=self.checksum(self.engine))

    def note_start(self, engine: ChangesWeights) -> None:
        """Take the checksum of the weights of the start, while the engine still has them."""
        if not self.updates and not self.discarded:
            self.start_checksum = self.checksum(engine)

    def record(self, step: UpdateWeights, began: float, *, error: str | None = None) -> None:
        """Record an update that ends now."""
        digest, ended = self.digest_of(step.version), self.clock()
        self.updates.append(
            WeightUpdate(began=began, ended=ended, version=step.version, weights=digest, route=step.route, error=error)
        )

    def checksum(self, engine: ChangesWeights) -> str | None:
        """Return the engine's checksum of its weights, if it has one."""
        if self.engine.capabilities[Capability.WEIGHT_CHECKSUM].present is not True:
            return None
        return engine.weights_checksum()

    def pause(self, step: Pause) -> None:
        """Pause the engine. A pause that clears the cache is recorded as a reset."""
        engine = self.engine
        if not isinstance(engine, Pauses):
            raise RequestRefused(501, engine.capabilities[Capability.PAUSE_KEEP].evidence)
        self.stop(lambda: engine.pause(step.mode, clear=step.clear), step.mode, clear=step.clear)

    def sleep(self, step: Sleep) -> None:
        """Let the engine sleep. From level 1 on, it discards its KV, which is recorded as a reset."""
        engine = self.engine
        if not isinstance(engine, Sleeps):
            raise RequestRefused(501, engine.capabilities[Capability.SLEEP].evidence)
        if step.level > 1 and isinstance(engine, ChangesWeights):
            self.note_start(engine)
        self.stop(lambda: engine.sleep(step.level), PauseMode.ABORT, clear=step.level > 0, level=step.level)
        self.asleep = {SleepPart.WEIGHTS, SleepPart.KV} if step.level else set()
        self.discarded = step.level > 1

    def stop(self, call: Callable[[], None], mode: PauseMode, *, clear: bool, level: int | None = None) -> None:
        """Pause the engine by `call`, and record it."""
        began, error = self.clock(), None
        try:
            call()
        except EngineError as problem:
            error = str(problem)
            raise
        finally:
            ended = self.clock()
            self.pauses.append(PauseRecord(began=began, ended=ended, mode=mode, clear=clear, level=level, error=error))
            if clear:
                self.on_clear(
                    ResetRecord(began=began, ended=ended, success=error is None, scope=cleared_beside(self.engine))
                )

    def resume(self) -> None:
        """Resume after a pause."""
        if isinstance(self.engine, Pauses):
            self.start_again(self.engine.resume)

    def wake(self, step: Wake) -> None:
        """Wake a part up after a sleep. The last part ends the sleep."""
        engine, part = self.engine, step.part
        if not isinstance(engine, Sleeps):
            return
        left = set() if part is SleepPart.ALL else self.asleep - {part}
        if left:
            engine.wake(part)
        else:
            self.start_again(lambda: engine.wake(part))
        self.asleep = left

    def wake_rest(self) -> None:
        """Wake up what is asleep. An engine may refuse to wake up what is awake already."""
        self.wake(Wake(*self.asleep) if len(self.asleep) == 1 else Wake())

    def start_again(self, call: Callable[[], None]) -> None:
        """End the last pause by `call`, and record it."""
        resumed = self.clock()
        call()
        if self.pauses:
            self.pauses[-1] = msgspec.structs.replace(self.pauses[-1], resumed=resumed, running=self.clock())

    @property
    def stopped(self) -> bool:
        """Return whether the engine is paused or asleep."""
        return bool(self.pauses) and self.pauses[-1].error is None and self.pauses[-1].running is None

    def clean_up(self) -> None:
        """Resume or wake up, and load the weights of the start again."""
        if self.stopped:
            self.resume() if self.pauses[-1].level is None else self.wake_rest()
        if isinstance(self.engine, ChangesWeights) and (self.version != START_WEIGHTS or self.discarded):
            self.engine.update_weights(str(self.versions[START_WEIGHTS].folder.resolve()), WeightRoute.PATH)
            self.version, self.discarded = START_WEIGHTS, False
