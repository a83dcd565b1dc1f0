"""Two scripted engines of different kinds that serve one model, and a lab in which one is tested against the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.base import Completion, CompletionRequest, Token
from harness.budget import Budget
from harness.cell import Cell
from harness.cells import CELLS
from harness.engines.kind import Kind, Setting
from harness.engines.kinds import KINDS
from harness.events import EventLog
from harness.evidence import Evidence
from harness.lab import Lab
from harness.options import Options
from harness.requirement import Requirement, Trial, Violation
from harness.scripted import Plant, ScriptedEngine
from harness.session import Session
from harness.verdict import verdict_of_case, verdict_without_case
from harness.workload import Workload
from reports.schema import Case, Verdict
from tests.histories import contents

Tamper = Callable[[CompletionRequest, Completion], Completion]
NAME = "engine:right 1"
CLOSE = 1e-5  # nats: a runner-up so near that the order of additions decides
MIDDLING = range(100, 1000)  # lengths that no calibration asks for


class Tampering(ScriptedEngine):
    """A scripted engine, with a planted bug or without, whose answers pass through a function first."""

    def __init__(self, tamper: Tamper, *, plant: Plant = Plant.CLEAN, caching: bool) -> None:
        super().__init__(plant, caching=caching)
        self.tamper = tamper
        self.asked: list[tuple[int, ...]] = []

    def answer(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """The honest answer, tampered with."""
        self.asked.append(request.prompt)
        return self.tamper(request, super().answer(request, on_token))


class Deaf(ScriptedEngine):
    """An engine that serves the base model under every adapter's name, warm or cold."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Say yes."""
        self.contents[name] = ""


def honest(_: CompletionRequest, answer: Completion) -> Completion:
    """As it is."""
    return answer


def scored(by: float) -> Tamper:
    """Scores that lie so far from those of an honest engine, to either side."""
    signs = itertools.cycle((-1, 1))

    def tamper(_: CompletionRequest, answer: Completion) -> Completion:
        moved = tuple(msgspec.structs.replace(t, logprob=-0.1 + by * next(signs)) for t in answer.tokens)
        return msgspec.structs.replace(answer, tokens=moved)

    return tamper


def unscored(_: CompletionRequest, answer: Completion) -> Completion:
    """Nothing but ids."""
    return msgspec.structs.replace(answer, tokens=tuple(Token(id=t.id, at=0.0) for t in answer.tokens))


def wrong(request: CompletionRequest, answer: Completion) -> Completion:
    """Another third token to the prompts of middling length, of which a calibration has none."""
    if len(request.prompt) not in MIDDLING:
        return answer
    return replaced(answer, 2, gap=5.0)


def close_call(request: CompletionRequest, answer: Completion) -> Completion:
    """Another third token to the prompts of middling length, for it was no more likely than its runner-up."""
    if len(request.prompt) not in MIDDLING:
        return answer
    return replaced(answer, 2, gap=CLOSE)


def torn(request: CompletionRequest, answer: Completion) -> Completion:
    """The other side of the close call: it goes the honest way."""
    return kept(close_call(request, answer), answer)


def kept(taken: Completion, answer: Completion) -> Completion:
    """The tokens of an honest answer, as close to their runners-up as those that were taken."""
    pairs = zip(taken.tokens, answer.tokens, strict=True)
    return msgspec.structs.replace(taken, tokens=tuple(msgspec.structs.replace(t, id=was.id) for t, was in pairs))


def replaced(answer: Completion, position: int, *, gap: float) -> Completion:
    """An answer with another token at a position, which lies so far before its runner-up."""
    tokens = list(answer.tokens)
    if position < len(tokens):
        tokens[position] = msgspec.structs.replace(tokens[position], id=tokens[position].id ^ 1, gap=gap)
    return msgspec.structs.replace(answer, tokens=tuple(tokens))


def of(tamper: Tamper, plant: Plant = Plant.CLEAN) -> Callable[[Setting], ScriptedEngine]:
    """How to start an engine, with its cache or without."""
    return lambda setting: Tampering(tamper, plant=plant, caching=setting.caching)


@contextmanager
def two_kinds(left: Callable[[Setting], Any], right: Callable[[Setting], Any]) -> Iterator[None]:
    """Engines `left` and `right`, as if their files were in harness/engines."""
    with pytest.MonkeyPatch.context() as patch:
        for name, start in (("left", left), ("right", right)):
            cell = Cell(name=name, about="scripted", alike=False, engine=name)
            patch.setitem(CELLS, name, cell)
            patch.setitem(KINDS, name, Kind(name=name, about="scripted", cells=(cell,), start=start))
        yield


@contextmanager
def lab(folder: Path, left: Callable[[Setting], Any], right: Callable[[Setting], Any], **changes: Any) -> Iterator[Lab]:
    """A lab for `left`, whose answers are compared with those of `right`, unless `changes` to the options say else."""
    given: dict[str, Any] = {"engine": "left", "oracle": "engine:right", "cells": ("left",), "profile": "wide"}
    options = Options(**{"report_dir": folder, "model": "none", **given, **changes})
    with two_kinds(left, right):
        session = Session(options, EventLog(folder / "events.ndjson"), folder, Budget(60.0, 1.0))
        session.contents[False] = contents(folder)
        try:
            yield Lab(session, CELLS["left"])
        finally:
            session.close()


def tried(lab: Lab, workload: Workload, *, name: str = "LORA-1") -> tuple[Verdict, str, Case | None]:
    """The verdict on one workload, with its reason and case, as a run would give it."""
    trial = Trial(Requirement(name, "as cold", (), (Evidence.REQUESTS,)), "left", "a statement", "a_test")
    lab.trial = trial
    try:
        (lab.check_without_cache if lab.on_cold(trial) else lab.check)(workload)
    except Violation:
        case = lab.confirm(trial, lambda _: False)
        return *verdict_of_case(case), case
    return *verdict_without_case(trial, None, lab.judged_by(ground=lab.on_cold(trial))[1]), None
