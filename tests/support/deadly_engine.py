"""A plugin with an engine `deadly` in two cells, which dies of one kind of request, with or without its cache.

COLDPROOF_DEADLY names the kind, or says "every request". The time of each death is a line of the file
COLDPROOF_DEADLY_TIMES. With COLDPROOF_DEADLY_NOISE its scores vary, so that the calibration measures them.
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
KIND = None if os.environ["COLDPROOF_DEADLY"] == EVERY else RequestKind(os.environ["COLDPROOF_DEADLY"])
NOISE = 0.01 if os.environ.get("COLDPROOF_DEADLY_NOISE") else 0.0
DRAWN = random.Random(5)
TIMES = Path(os.environ["COLDPROOF_DEADLY_TIMES"])
OFFERED = (Capability.SEVERAL_ANSWERS, Capability.STOP_STRINGS, Capability.STRUCTURED_OUTPUT)


class DeadlyEngine(ScriptedEngine):
    """Answers honestly, or dies. It ignores options that it does not die of."""

    def __init__(self, *, caching: bool) -> None:
        super().__init__(caching=caching)
        self.capabilities |= {one: Support(True, "scripted") for one in OFFERED}

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Die of prompt logprobs beside another request, or answer."""
        scored = any(one.request.surface.prompt_logprobs for one in arrivals)
        if KIND is RequestKind.SCORES_BESIDE and len(arrivals) > 1 and scored:
            self.die()
        return super().serve(arrivals, on_token, between)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Die of the request, or answer it."""
        asked = request.surface
        if KIND is None or {
            RequestKind.SCORES: asked.prompt_logprobs,
            RequestKind.SEVERAL: asked.answers > 1,
            RequestKind.STOP: bool(asked.stop),
            RequestKind.PATTERN: asked.pattern is not None,
            RequestKind.LOGPROBS: asked.logprobs,
            RequestKind.ADAPTER: request.model != self.base_model,
        }.get(KIND, False):
            self.die()
        if self.dead:
            raise EngineDied("the scripted engine has terminated")
        answer = noisy(super().send(request, on_token)) if NOISE else super().send(request, on_token)
        return msgspec.structs.replace(answer, others=(answer.tokens,) * (asked.answers - 1))

    def die(self) -> None:
        """End, and write down when."""
        if not self.dead:
            with TIMES.open("a") as times:
                times.write(f"{time.time()}\n")
        self.dead = True


def noisy(answer: Completion) -> Completion:
    """The same answer with other scores each time."""

    def moved(score: float | None) -> float | None:
        return None if score is None else score + DRAWN.gauss(0, NOISE)

    moved_tokens = (msgspec.structs.replace(t, logprob=moved(t.logprob), gap=moved(t.gap)) for t in answer.tokens)
    scores = None if answer.prompt_logprobs is None else tuple(map(moved, answer.prompt_logprobs))
    return msgspec.structs.replace(answer, tokens=tuple(moved_tokens), prompt_logprobs=scores)


def start(setting: StartOptions) -> DeadlyEngine:
    """Start the engine."""
    return DeadlyEngine(caching=setting.caching)


for name in ("deadly", "deadly-too"):
    CELLS[name] = Cell(name=name, about="scripted", engine="deadly", alike=False)
ENGINES["deadly"] = EngineSpec(
    name="deadly", about="scripted", cells=(CELLS["deadly"], CELLS["deadly-too"]), start=start, quick=True
)
