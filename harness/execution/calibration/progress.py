"""Counts the cold answers of a calibration and emits its progress: with a slow model it takes minutes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from coldproof.harness.execution.oracles.engine import EngineOracle

EVERY_SECONDS = 1.0  # between two events


class Progress:
    """Emits `phase` events with the number of answers so far, of a known total."""

    def __init__(self, emit: Callable[..., Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock

    @contextlib.contextmanager
    def counting(self, words: str, *oracles: EngineOracle, of: int) -> Iterator[Count]:
        """Count the answers of these oracles while the block runs. `of`: the total."""
        count = Count(lambda **fields: self._emit("phase", words=words, **fields), self._clock, of)
        before = [oracle.on_answer for oracle in oracles]
        for oracle in oracles:
            oracle.on_answer = count.add
        try:
            yield count
        finally:
            for oracle, hook in zip(oracles, before, strict=True):
                oracle.on_answer = hook


class Count:
    """Counts the answers of one phase. Any thread may add; only the thread that created the count emits events."""

    def __init__(self, emit: Callable[..., Any], clock: Callable[[], float], of: int) -> None:
        self._emit, self._clock = emit, clock
        self.done, self.of = 0, of
        self._began = self._shown = clock()
        self._owner = threading.get_ident()

    def add(self) -> None:
        """Count one answer."""
        self.done += 1
        if threading.get_ident() == self._owner:
            self.show()

    def show(self) -> None:
        """Emit the count, unless the last event was emitted less than EVERY_SECONDS ago."""
        now = self._clock()
        if now - self._shown < EVERY_SECONDS or not 0 < self.done < self.of:
            return
        self._shown = now
        left = (now - self._began) / self.done * (self.of - self.done)
        self._emit(done=self.done, of=self.of, seconds_left=round(left, 1))


SILENT = Progress(lambda *_, **__: None)
