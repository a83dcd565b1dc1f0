"""Shows the progress of a proof: with a slow model, minimising and confirming a counterexample take minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.proof.confirm.confirm import Observe
from coldproof.harness.workload.steps import Workload

EVERY_SECONDS = 10.0  # between two events


class Watched:
    """Runs and judges workloads as `observe` does, and emits how many it has run. `doing`: what they are run for."""

    def __init__(
        self,
        observe: Observe,
        emit: Callable[..., Any],
        doing: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observe, self.emit, self.doing, self.clock = observe, emit, doing, clock
        self.runs = 0
        self.began = self.shown = clock()

    def __call__(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> Judgement:
        """Run a workload and return its judgement. Raises EngineError if there is no engine."""
        judgement = self.observe(engine, workload, nonce)
        self.runs += 1
        if self.clock() - self.shown >= EVERY_SECONDS:
            self.shown = self.clock()
            words = f"{self.doing}: {self.runs} workloads run in {self.shown - self.began:.0f} s"
            self.emit("phase", words=words)
        return judgement
