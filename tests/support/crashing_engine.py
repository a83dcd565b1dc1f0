"""A plugin with an engine `crashing` in two cells, which crashes on one kind of request, with or without its cache.

COLDPROOF_CRASHING names the kind, or says "every request". The time of each crash is a line of the file
COLDPROOF_CRASHING_TIMES. With COLDPROOF_CRASHING_NOISE its scores vary, so that the calibration measures them.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied, Served
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.request_kinds import RequestKind

EVERY = "every request"
KIND = None if os.environ["COLDPROOF_CRASHING"] == EVERY else RequestKind(os.environ["COLDPROOF_CRASHING"])
NOISE = 0.01 if os.environ.get("COLDPROOF_CRASHING_NOISE") else 0.0
DRAWN = random.Random(5)
TIMES = Path(os.environ["COLDPROOF_CRASHING_TIMES"])
OFFERED = (Capability.SEVERAL_ANSWERS, Capability.STOP_STRINGS, Capability.STRUCTURED_OUTPUT)


class CrashingEngine(ScriptedEngine):
    """A scripted engine that answers honestly or crashes. It ignores response options that it does not crash on."""

    def __init__(self, *, caching: bool) -> None:
        super().__init__(caching=caching)
        self.capabilities |= {one: Support(True, "scripted") for one in OFFERED}

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Crash on prompt logprobs that are sent beside another request, or answer."""
        scored = any(one.request.options.prompt_logprobs for one in arrivals)
        if KIND is RequestKind.SCORES_BESIDE and len(arrivals) > 1 and scored:
            self.die()
        return super().serve(arrivals, on_token, between)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Crash on the request, or answer it."""
        options = request.options
        if KIND is None or {
            RequestKind.SCORES: options.prompt_logprobs,
            RequestKind.SEVERAL: options.answers > 1,
            RequestKind.STOP: bool(options.stop),
            RequestKind.PATTERN: options.pattern is not None,
            RequestKind.LOGPROBS: options.logprobs,
            RequestKind.ADAPTER: request.model != self.base_model,
        }.get(KIND, False):
            self.die()
        if self.dead:
            raise EngineDied("the scripted engine has terminated")
        answer = noisy(super().send(request, on_token)) if NOISE else super().send(request, on_token)
        return msgspec.structs.replace(answer, others=(answer.tokens,) * (options.answers - 1))

    def die(self) -> None:
        """Terminate, and record the time of the first crash."""
        if not self.dead:
            with TIMES.open("a") as times:
                times.write(f"{time.time()}\n")
        self.dead = True


def noisy(answer: Completion) -> Completion:
    """Return the same answer with scores that vary from call to call."""

    def moved(score: float | None) -> float | None:
        return None if score is None else score + DRAWN.gauss(0, NOISE)

    moved_tokens = (msgspec.structs.replace(t, logprob=moved(t.logprob), gap=moved(t.gap)) for t in answer.tokens)
    scores = None if answer.prompt_logprobs is None else tuple(map(moved, answer.prompt_logprobs))
    return msgspec.structs.replace(answer, tokens=tuple(moved_tokens), prompt_logprobs=scores)


def start(setting: StartOptions) -> CrashingEngine:
    """Start the engine."""
    return CrashingEngine(caching=setting.caching)


for name in ("crashing", "crashing-too"):
    CELLS[name] = Cell(name=name, about="scripted", engine="crashing", alike=False)
ENGINES["crashing"] = EngineSpec(
    name="crashing", about="scripted", cells=(CELLS["crashing"], CELLS["crashing-too"]), start=start, quick=True
)
