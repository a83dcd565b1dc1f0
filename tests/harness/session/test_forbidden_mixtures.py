"""A mixture of models that fails without the cache too is not used by any other requirement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.across import MIDDLING, crossed_engines, replaced, verdict_on
from support.drawn_workloads import limits
from support.histories import ask, burst, history, outcome, put

from coldproof.adapters.protocol.engine import Arrival, Served
from coldproof.adapters.protocol.requests import Completion
from coldproof.adapters.registry import CELLS
from coldproof.harness.execution.engines.cell_engines import CellEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.history.records import History
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.session.budget import Budget
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER
from coldproof.harness.workload.steps import Workload
from coldproof.reports.assemble.assemble import read_events

Breaks = Callable[[ScriptedEngine], bool]
LONG = (("stem", 120),)
BASE_BESIDE = Workload((put("A"), burst(ask(*LONG, max_tokens=8), ask(*LONG, adapter="tenant", max_tokens=8))))
BESIDE_OTHER = Workload(
    (
        put("A"),
        put("B", name="other"),
        burst(ask(*LONG, adapter="tenant", max_tokens=8), ask(*LONG, adapter="other", max_tokens=8)),
    )
)


class Mixing(ScriptedEngine):
    """An engine that answers long prompts wrongly in a burst of several models. A calibration sends no such prompts."""

    def __init__(self, breaks: Breaks, *, caching: bool) -> None:
        super().__init__(caching=caching)
        self.breaks = breaks

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Serve the burst, and change its long answers if several models are in it."""
        served = super().serve(arrivals, on_token, between)
        long = [arrival for arrival in arrivals if len(arrival.request.prompt) in MIDDLING]
        if len({arrival.request.model for arrival in long}) < 2:
            return served
        return [self.tampered(one) for one in served] if self.breaks(self) else served

    def tampered(self, one: Served) -> Served:
        """Return the result with another third token."""
        assert isinstance(one.result, Completion)
        return msgspec.structs.replace(one, result=replaced(one.result, 2, gap=5.0))


@contextmanager
def mixing_cell(folder: Path, breaks: Breaks, **options: object) -> Iterator[SystemUnderTest]:
    """Yield a cell of such an engine, compared with its own cold answers."""

    def start(setting: object) -> Mixing:
        return Mixing(breaks, caching=bool(getattr(setting, "caching", True)))

    with crossed_engines(folder, start, start, **{"oracle": "cold-engine", **options}) as sut:
        yield sut


def always(_: ScriptedEngine) -> bool:
    """Return that the answer is wrong, with the cache and without it."""
    return True


@pytest.mark.parametrize(("workload", "mixture"), [(BASE_BESIDE, BASE_WITH_ADAPTER), (BESIDE_OTHER, ADAPTERS_TOGETHER)])
def test_a_failure_without_the_cache_is_no_cache_finding(workload: Workload, mixture: str, tmp_path: Path) -> None:
    """The mixture is no longer used here or in cells with the same cold answers."""
    with mixing_cell(tmp_path, always) as sut:
        assert sut.limits.may_mix(mixture)
        verdict, _, case = verdict_on(sut, workload, name="LORA-4")
        assert (verdict, case) == (Verdict.NOT_EXERCISED, None)
        assert not sut.limits.may_mix(mixture)
        later = SystemUnderTest(CellEngines.open(sut.engines.pool, CELLS["left"]), Budget(60.0, 1.0))
        assert not later.limits.may_mix(mixture)
    events = [event for event in read_events(tmp_path / "events.ndjson") if event["event"] == "mixture_excluded"]
    assert {(event["cell"], event["mixture"]) for event in events} == {("left", mixture)}


def test_an_attached_server_gets_unused_salts_in_place_of_a_cold_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new salt is the only way to avoid the cache of an attached server."""
    monkeypatch.setattr(EnginePool, "attach", lambda *_, caching: Mixing(always, caching=True))
    attached = {"engine": "endpoint", "engine_url": "http://h:1", "oracle": "same-engine"}
    with mixing_cell(tmp_path, always, **attached) as sut:
        assert verdict_on(sut, BASE_BESIDE, name="LORA-4")[2] is None
        assert not sut.limits.may_mix(BASE_WITH_ADAPTER)


@pytest.mark.parametrize(("profile", "suspected"), [("wide", [BASE_WITH_ADAPTER]), ("smoke", [])])
def test_a_case_names_the_mixtures_that_its_replays_do_not_rule_out(
    profile: str, suspected: list[str], tmp_path: Path
) -> None:
    """Three failures of three with the cache and none of three without it rule a mixture out; one of one does not."""
    with mixing_cell(tmp_path, lambda engine: engine.shape.prefix_caching is True, profile=profile) as sut:
        verdict, _, case = verdict_on(sut, BASE_BESIDE, name="LORA-4")
        assert sut.limits.may_mix(BASE_WITH_ADAPTER)
    assert verdict is Verdict.VIOLATED
    assert case is not None
    assert case.mixtures == suspected


def test_the_ground_requirement_excludes_what_it_finds(tmp_path: Path) -> None:
    """The case names no mixtures, because it is about the mixture itself."""
    with mixing_cell(tmp_path, always) as sut:
        verdict, _, case = verdict_on(sut, BASE_BESIDE, name="GROUND-1")
        assert not sut.limits.may_mix(BASE_WITH_ADAPTER)
    assert case is not None
    assert (verdict, case.failure_class, case.mixtures) == (Verdict.VIOLATED, FailureClass.NOT_THE_CACHE, [])


def test_what_the_ground_requirement_saw_once_is_inconclusive(tmp_path: Path) -> None:
    """The cause may be a busy machine. The mixture is not used all the same, because it is unknown whether it works."""
    times = itertools.count()
    with mixing_cell(tmp_path, lambda _: next(times) == 0) as sut:
        verdict, reason, _ = verdict_on(sut, BASE_BESIDE, name="GROUND-1")
        assert not sut.limits.may_mix(BASE_WITH_ADAPTER)
    assert verdict is Verdict.INCONCLUSIVE
    assert "observed once" in reason


SEVERAL = history(
    outcome(0, range(40)),
    outcome(1, range(40), adapter="digest-a", sent=0.0),
    outcome(2, range(40), adapter="digest-b", sent=0.0),
)
ALONE = history(outcome(0, range(40)))
TOGETHER = history(outcome(0, range(40)), outcome(1, range(40), adapter="digest-a", sent=0.0))


@pytest.mark.parametrize(
    ("without_cache", "seen", "excluded", "forbids"),
    [
        (True, TOGETHER, frozenset(), True),
        (True, TOGETHER, frozenset({BASE_WITH_ADAPTER}), False),
        (True, SEVERAL, frozenset({BASE_WITH_ADAPTER}), False),
        (True, ALONE, frozenset({BASE_WITH_ADAPTER}), True),
        (False, TOGETHER, frozenset(), False),
    ],
    ids=["in a mixture that is drawn", "in an excluded one", "in one beside it", "in no mixture", "with a cache"],
)
def test_only_a_failure_without_a_cache_in_an_excluded_mixture_may_wait_for_its_proof(
    without_cache: bool, seen: History, excluded: frozenset[str], forbids: bool
) -> None:
    """The tests that follow depend on the others: they would draw what fails without the cache, too."""
    sut = object.__new__(SystemUnderTest)
    trial = SimpleNamespace(requirement=SimpleNamespace(without_cache=without_cache))
    sut._current = cast(Any, SimpleNamespace(trial=trial))
    sut.limits = msgspec.structs.replace(limits(), mixtures=limits().mixtures - excluded)
    assert sut.forbids_more(cast(Any, SimpleNamespace(history=seen))) is forbids
