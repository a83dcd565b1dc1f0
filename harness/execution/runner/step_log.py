"""Collects the steps that an engine's scheduler recorded during a run, with the history's numbers and times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from coldproof.adapters.protocol.engine import Engine, EngineError
from coldproof.adapters.protocol.engine_steps import Admission, Chunk, EngineStep, RecordsSteps

Part = TypeVar("Part", Admission, Chunk)


class StepLog:
    """The steps of one run so far. `recorded` is None for an engine that records none."""

    def __init__(self, engine: Engine, nonce: str) -> None:
        """Discard what was recorded before the run."""
        self.recorded: list[EngineStep] | None = None if take(engine) is None else []
        self.number = re.compile(rf"{re.escape(nonce)}\.(\d+)\.")  # see request_tag in harness/history/provenance.py

    def collect(self, engine: Engine, *, began: float) -> None:
        """Take the steps since the last call. `began`: the engine's time at the start of the run."""
        if self.recorded is not None:
            self.recorded += [self.of_run(step, began) for step in take(engine) or ()]

    def steps(self) -> tuple[EngineStep, ...] | None:
        """Return all steps that were collected."""
        return None if self.recorded is None else tuple(self.recorded)

    def of_run(self, step: EngineStep, began: float) -> EngineStep:
        """Return a step in the times and numbers of the run, without requests of others."""
        return msgspec.structs.replace(
            step,
            at=round(step.at - began, 6),
            admitted=tuple(self.numbered(step.admitted)),
            chunks=tuple(self.numbered(step.chunks)),
        )

    def numbered(self, parts: tuple[Part, ...]) -> Iterator[Part]:
        """Yield the parts of requests of this run, with the request's number instead of the engine's name."""
        for part in parts:
            found = self.number.search(part.request)
            if found is not None:
                yield msgspec.structs.replace(part, request=found[1])


def take(engine: Engine) -> tuple[EngineStep, ...] | None:
    """Return the steps that an engine has recorded; None if it records none, or has crashed."""
    try:
        return engine.take_steps() if isinstance(engine, RecordsSteps) else None
    except EngineError:
        return None
