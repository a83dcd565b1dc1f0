"""A plugin with an engine `lying`: the scripted engine with the fault that COLDPROOF_LIE names, and correct counts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import msgspec

from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.harness.session.selftest.scripted_engine import BlindModel, ScriptedEngine

NAME = "lying"
LIE = os.environ.get("COLDPROOF_LIE", "NONE")
CLOSE = 0.0005  # nats between two tokens
EVERY = {"EVERY_HIT": 1, "EVERY_HIT_VARYING": 1, "ONE_IN_FIFTY": 50}  # one wrong answer on so many hits
FIRST = 2  # the number of the first one, if not all are wrong


class LyingEngine(ScriptedEngine):
    """A scripted engine that reports a small margin for each token, and gives other tokens on some hits."""

    def __init__(self, *, caching: bool) -> None:
        super().__init__(caching=caching, model=BlindModel[LIE] if LIE in BlindModel.__members__ else None)
        self.hits, self.scores = itertools.count(), itertools.count()
        self.every = EVERY.get(LIE)

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Return the answer, with another first token where the fault strikes."""
        honest = super().send(request, on_token)
        varying = CLOSE / 7 if LIE == "EVERY_HIT_VARYING" else 0.0
        tokens = [
            msgspec.structs.replace(token, logprob=-0.1 - varying * (next(self.scores) % 7), gap=CLOSE)
            for token in honest.tokens
        ]
        if self.every is None or not honest.cached_tokens:
            return msgspec.structs.replace(honest, tokens=tuple(tokens))
        if next(self.hits) % self.every == min(FIRST, self.every - 1):
            tokens[0] = msgspec.structs.replace(tokens[0], id=tokens[0].id ^ 1)
        return msgspec.structs.replace(honest, tokens=tuple(tokens))


def start(setting: StartOptions) -> LyingEngine:
    """Start the engine."""
    return LyingEngine(caching=setting.caching)


CELLS[NAME] = Cell(name=NAME, about="scripted", engine=NAME, alike=False)
ENGINES[NAME] = EngineSpec(name=NAME, about="scripted", cells=(CELLS[NAME],), start=start, quick=True)
