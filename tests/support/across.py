"""Two scripted engines that serve the same model, so that one can be compared with the other."""

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
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.budget import Budget
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.steps import Workload

Tamper = Callable[[CompletionRequest, Completion], Completion]
NAME = "engine:right 1"
CLOSE = 1e-5  # nats: a runner-up so near that the order of additions decides
MIDDLING = range(100, 1000)  # lengths that no calibration uses


class Tampering(ScriptedEngine):
    """A scripted engine, with or without an injected bug, whose answers pass through a function before they are
    returned.
    """

    def __init__(self, tamper: Tamper, *, plant: InjectedBug = InjectedBug.CLEAN, caching: bool) -> None:
        super().__init__(plant, caching=caching)
        self.tamper = tamper
        self.prompts: list[tuple[int, ...]] = []

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Return the honest answer after `tamper` has changed it."""
        self.prompts.append(request.prompt)
        return self.tamper(request, super().send(request, on_token))


class IgnoresAdapters(ScriptedEngine):
    """An engine that ignores adapters: it serves the base model under every adapter name, with or without a cache."""

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Report success without loading anything."""
        self.contents[name] = ""


def honest(_: CompletionRequest, answer: Completion) -> Completion:
    """Return the answer unchanged."""
    return answer


def scores_moved_by(by: float) -> Tamper:
    """Return a function that moves each logprob by this many nats, up and down in turn."""
    signs = itertools.cycle((-1, 1))

    def tamper(_: CompletionRequest, answer: Completion) -> Completion:
        moved = tuple(msgspec.structs.replace(t, logprob=-0.1 + by * next(signs)) for t in answer.tokens)
        return msgspec.structs.replace(answer, tokens=moved)

    return tamper


def without_scores(_: CompletionRequest, answer: Completion) -> Completion:
    """Return the answer with token ids and no logprobs."""
    return msgspec.structs.replace(answer, tokens=tuple(Token(id=t.id, at=0.0) for t in answer.tokens))


def wrong_third_token(request: CompletionRequest, answer: Completion) -> Completion:
    """Replace the third token if the prompt has a length that no calibration uses. The margin is large."""
    if len(request.prompt) not in MIDDLING:
        return answer
    return replaced(answer, 2, gap=5.0)


def close_call(request: CompletionRequest, answer: Completion) -> Completion:
    """Replace the third token as `wrong_token` does, but with a margin so small that rounding may choose either
    token.
    """
    if len(request.prompt) not in MIDDLING:
        return answer
    return replaced(answer, 2, gap=CLOSE)


def honest_close_call(request: CompletionRequest, answer: Completion) -> Completion:
    """Return the honest tokens with the small margins of `close_call`: the other engine's side of the same near tie."""
    return with_margins_of(close_call(request, answer), answer)


def with_margins_of(taken: Completion, answer: Completion) -> Completion:
    """Return the tokens of an honest answer with the margins of the tampered one."""
    pairs = zip(taken.tokens, answer.tokens, strict=True)
    return msgspec.structs.replace(taken, tokens=tuple(msgspec.structs.replace(t, id=was.id) for t, was in pairs))


def replaced(answer: Completion, position: int, *, gap: float) -> Completion:
    """Return the answer with another token at a position, whose margin to the runner-up is `gap` nats."""
    tokens = list(answer.tokens)
    if position < len(tokens):
        tokens[position] = msgspec.structs.replace(tokens[position], id=tokens[position].id ^ 1, gap=gap)
    return msgspec.structs.replace(answer, tokens=tuple(tokens))


def tampering(tamper: Tamper, plant: InjectedBug = InjectedBug.CLEAN) -> Callable[[StartOptions], ScriptedEngine]:
    """Return a function that starts an engine whose answers pass through `tamper`, with or without its cache."""
    return lambda setting: Tampering(tamper, plant=plant, caching=setting.caching)


@contextmanager
def two_engines(left: Callable[[StartOptions], Any], right: Callable[[StartOptions], Any]) -> Iterator[None]:
    """Register the engines `left` and `right` as if they had adapters of their own."""
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
    """Yield the engine `left` under test, compared with `right`, unless `changes` to the options say otherwise."""
    given: dict[str, Any] = {"engine": "left", "oracle": "engine:right", "cells": ("left",), "profile": "wide"}
    options = Options(**{"report_dir": folder, "cache_dir": folder, "model": "none", **given, **changes})
    with two_engines(left, right):
        session = EnginePool(options, EventLog(folder / "events.ndjson"))
        session.files.contents[ModelLayers.FULL] = contents(folder)
        try:
            yield SystemUnderTest(CellEngines.open(session, CELLS["left"]), Budget(60.0, 1.0))
        finally:
            session.close()


def verdict_on(sut: SystemUnderTest, workload: Workload, *, name: str = "LORA-1") -> tuple[Verdict, str, Case | None]:
    """Return the verdict on one workload with its reason and case, as a run would report it."""
    trial = Trial(Requirement(name, "as cold", (), (Requests.REQUESTS,)), "left", "a statement", "a_test")
    sut.begin(trial)
    cold = trial.requirement.without_cache
    try:
        (sut.check_without_cache if cold else sut.check)(workload)
    except Violation:
        case, _ = sut.confirm(trial, lambda _: False)
        return *verdict_of_case(case), case
    return *verdict_without_case(trial, None, sut.engines.oracle_and_rule(ground=cold)[1]), None
