"""Two scripted engines of different kinds that serve one model: one is tested against the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.histories import contents

from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Token
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell, ModelLayers
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.harness.event_log import EventLog
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial, Violation
from coldproof.harness.judgement.verdict import verdict_of_case, verdict_without_case
from coldproof.harness.options import Options
from coldproof.harness.session.budget import Budget
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.steps import Workload
from coldproof.reports.schema.case import Case
from coldproof.reports.schema.verdict import Verdict

Tamper = Callable[[CompletionRequest, Completion], Completion]
NAME = "engine:right 1"
CLOSE = 1e-5  # nats: a runner-up so near that the order of additions decides
MIDDLING = range(100, 1000)  # lengths that no calibration asks for


class Tampering(ScriptedEngine):
    """A scripted engine, with a planted bug or without, whose answers pass through a function first."""

    def __init__(self, tamper: Tamper, *, plant: InjectedBug = InjectedBug.CLEAN, caching: bool) -> None:
        super().__init__(plant, caching=caching)
        self.tamper = tamper
        self.asked: list[tuple[int, ...]] = []

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """The honest answer, tampered with."""
        self.asked.append(request.prompt)
        return self.tamper(request, super().send(request, on_token))


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


def of(tamper: Tamper, plant: InjectedBug = InjectedBug.CLEAN) -> Callable[[StartOptions], ScriptedEngine]:
    """How to start an engine, with its cache or without."""
    return lambda setting: Tampering(tamper, plant=plant, caching=setting.caching)


@contextmanager
def two_kinds(left: Callable[[StartOptions], Any], right: Callable[[StartOptions], Any]) -> Iterator[None]:
    """Engines `left` and `right`, as if their files were in harness/engines."""
    with pytest.MonkeyPatch.context() as patch:
        for name, start in (("left", left), ("right", right)):
            cell = Cell(name=name, about="scripted", alike=False, engine=name)
            patch.setitem(CELLS, name, cell)
            patch.setitem(ENGINES, name, EngineSpec(name=name, about="scripted", cells=(cell,), start=start))
        yield


@contextmanager
def crossed_engines(
    folder: Path, left: Callable[[StartOptions], Any], right: Callable[[StartOptions], Any], **changes: Any
) -> Iterator[SystemUnderTest]:
    """The engine `left` under test, compared with `right`, unless `changes` to the options say otherwise."""
    given: dict[str, Any] = {"engine": "left", "oracle": "engine:right", "cells": ("left",), "profile": "wide"}
    options = Options(**{"report_dir": folder, "cache_dir": folder, "model": "none", **given, **changes})
    with two_kinds(left, right):
        session = EnginePool(options, EventLog(folder / "events.ndjson"))
        session.files.contents[ModelLayers.FULL] = contents(folder)
        try:
            yield SystemUnderTest(CellEngines.open(session, CELLS["left"]), Budget(60.0, 1.0))
        finally:
            session.close()


def tried(sut: SystemUnderTest, workload: Workload, *, name: str = "LORA-1") -> tuple[Verdict, str, Case | None]:
    """The verdict on one workload, with its reason and case, as a run would give it."""
    trial = Trial(Requirement(name, "as cold", (), (Requests.REQUESTS,)), "left", "a statement", "a_test")
    sut.begin(trial)
    cold = trial.requirement.without_cache
    try:
        (sut.check_without_cache if cold else sut.check)(workload)
    except Violation:
        case, _ = sut.confirm(trial, lambda _: False)
        return *verdict_of_case(case), case
    return *verdict_without_case(trial, None, sut.engines.oracle_and_rule(ground=cold)[1]), None
