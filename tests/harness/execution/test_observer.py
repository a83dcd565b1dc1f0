"""An engine in which a failure may have left its effects is replaced, and its runs are recorded."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.histories import history
from support.report_samples import results

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.registry import CELLS
from coldproof.harness.execution import observer
from coldproof.harness.execution.engines import cell_engines, cell_start
from coldproof.harness.execution.engines.cell_engines import REMEMBERED, CellEngines
from coldproof.harness.execution.engines.cell_start import ComparisonRules, StartedEngines
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.observer import Observer
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.finding import EXACT, Finding, Rule
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Ran
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine

RELOAD = Requirement("LORA-1", "as cold", (), ())


def engines(*, quick: bool = True, attached: bool = False) -> CellEngines:
    """Return the engines of a cell: two scripted ones, a pool that starts none, and no calibration."""
    options = SimpleNamespace(attached=attached, shared=attached, quick=quick)
    pool = cast(EnginePool, SimpleNamespace(options=options, log=SimpleNamespace(emit=lambda *_, **__: None)))
    tested, cold = CheckedEngine(ScriptedEngine()), CheckedEngine(ScriptedEngine(caching=False))
    started = StartedEngines(tested=tested, cold_engine=cold, oracle=cast(Any, None), cold=cast(Any, None))
    calibration = cast(Any, results().calibration)
    return CellEngines(
        pool, CELLS["default"], started, ComparisonRules(calibration=calibration, rule=EXACT, own_rule=EXACT)
    )


class FixedObserver:
    """An observer whose runs all end in the same way, and which counts the engines that it has replaced."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        checker: str | None,
        *,
        lost: str | None = None,
        rule: Rule = EXACT,
        **kind: bool,
    ) -> None:
        self.engines, self.replaced = engines(**kind), 0
        found = Finding(checker=checker or "", failure_class=FailureClass.ACCOUNTING, sentence="Something.")
        self.judgement = Judgement(
            history=history(), answers={}, findings=(found,) if checker else (), noise=(), evidence={}, rule=rule
        )
        patch.setattr(observer, "judge", lambda *_, **__: self.judgement)
        patch.setattr(self.engines, "run", lambda *_: history(engine_lost=lost))
        patch.setattr(self.engines, "replace_lost", self.count)
        patch.setattr(self.engines, "look_again", lambda: False)
        self.lost, self.observe = lost, Observer(self.engines, RELOAD)

    def count(self, engine: CheckedEngine, *, lost: bool = True) -> CheckedEngine:
        """Count a replacement."""
        assert lost is (self.lost is not None)
        self.replaced += 1
        return engine

    def run(self, engine: CheckedEngine | None = None) -> Judgement:
        """Observe once, on the engine under test by default."""
        return self.observe(engine or self.engines.engine, history().workload)


def test_a_lost_cold_engine_is_replaced_below_its_oracle() -> None:
    """The oracle uses the new engine, in batches as before, and loads its adapters again."""
    cell = engines()
    lost, new = cell.oracle_engine, CheckedEngine(ScriptedEngine(caching=False))
    assert lost is not None
    cold = cell.oracle = cell.cold = EngineOracle("cold-engine", lost, [], memo={})
    cold.batches, cold.loaded = True, {"digest": "name"}
    started: Future[CheckedEngine] = Future()
    started.set_result(new)
    closed: list[CheckedEngine] = []
    cell.pool.close_cold, cell.pool.cold_engine = closed.append, lambda _: started  # type: ignore
    assert cell.replace_lost(lost) is cell.oracle_engine is cold.engine is new
    assert closed == [lost]
    assert cell.oracle is cell.cold is cold
    assert (cold.batches, cold.loaded) == (True, {})


def test_how_long_a_workload_takes_is_known_after_its_engine_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang ends its engine. Without that time, its case was replayed in full every time."""
    cell = engines()
    now = iter([10.0, 46.0])
    monkeypatch.setattr(cell_engines.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(cell, "workload_run", lambda *_, **__: SimpleNamespace(history=history))
    assert cell.latest_seconds == 0.0
    cell.run(cell.engine, history().workload, "once")
    cell.engine = CheckedEngine(ScriptedEngine())
    assert cell.latest_seconds == 36.0


@pytest.mark.parametrize(("checker", "times"), [("conservation", 3), ("liveness", 3), ("tokens", 0), (None, 0)])
def test_failures_that_may_leave_effects_replace_the_engine(
    monkeypatch: pytest.MonkeyPatch, checker: str | None, times: int
) -> None:
    """A wrong answer leaves nothing in an engine, but blocks that no request holds stay there."""
    fixed = FixedObserver(monkeypatch, checker)
    for _ in range(3):
        fixed.run()
    assert fixed.replaced == times


@pytest.mark.parametrize(("kind", "times"), [({"quick": False}, 1), ({"attached": True}, 0)])
def test_a_server_is_replaced_once_and_an_attached_one_never(
    monkeypatch: pytest.MonkeyPatch, kind: dict[str, bool], times: int
) -> None:
    """This holds for a trial, because starting a server is slow."""
    fixed = FixedObserver(monkeypatch, "conservation", **kind)
    for _ in range(3):
        fixed.run()
    assert fixed.replaced == times


@pytest.mark.parametrize(("attached", "alive", "times"), [(True, True, 0), (True, False, 1), (False, True, 1)])
def test_a_server_that_only_stalled_is_judged(
    monkeypatch: pytest.MonkeyPatch, attached: bool, alive: bool, times: int
) -> None:
    """An attached server cannot be replaced, and its stall is the finding. A managed one is restarted."""
    fixed = FixedObserver(monkeypatch, "tokens", lost="no progress for 20 s", attached=attached)
    monkeypatch.setattr(CheckedEngine, "alive", lambda _: alive)
    monkeypatch.setattr(fixed.engines, "live_engine", lambda engine: engine)
    assert fixed.run().findings
    assert fixed.replaced == times


def test_the_cold_engine_and_fresh_ones_are_not_the_one_under_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are replaced elsewhere."""
    fixed = FixedObserver(monkeypatch, "conservation")
    for engine in (fixed.engines.oracle_engine, CheckedEngine(ScriptedEngine())):
        fixed.run(engine)
    assert fixed.replaced == 0


def test_what_the_engine_under_test_has_run_is_known() -> None:
    """Other engines also got questions, which are not recorded."""
    cell = engines()
    ran = Ran(history().workload, "n", 1.0)
    assert cell.oracle_engine is not None
    for engine in (cell.engine, cell.oracle_engine):
        cell.ran[engine] = deque([ran], maxlen=REMEMBERED)
    assert cell.runs_of(cell.engine) == (ran,)
    assert cell.runs_of(cell.oracle_engine) == ()
    assert cell.runs_of(CheckedEngine(ScriptedEngine())) == ()


def test_engines_can_be_kept_without_starting_any() -> None:
    """Opening a cell starts and calibrates; the object itself only stores."""
    cell = engines()
    assert cell.can(Capability.CACHE_SALT)
    assert cell.oracle_and_rule(ground=False)[1] is EXACT
    cell.cancel_questions()


@pytest.mark.parametrize(
    ("checker", "exact", "waivable", "looks"),
    [
        ("tokens", True, False, 1),
        ("tokens", True, True, 0),
        ("tokens", False, False, 0),
        ("conservation", True, False, 0),
        (None, True, False, 0),
    ],
)
def test_the_first_wrong_answer_of_an_exact_engine_leads_to_a_second_measurement(
    monkeypatch: pytest.MonkeyPatch, checker: str | None, exact: bool, waivable: bool, looks: int
) -> None:
    """The workload runs again under the resulting rule, and is judged by that run alone."""
    fixed = FixedObserver(monkeypatch, checker, rule=Rule(exact=exact))
    fixed.observe.doubts = lambda: not waivable
    looked: list[bool] = []

    def look_again() -> bool:
        looked.append(True)
        fixed.judgement = msgspec.structs.replace(fixed.judgement, findings=(), rule=Rule(exact=False, noise=0.5))
        return True

    monkeypatch.setattr(fixed.engines, "look_again", look_again)
    assert bool(fixed.run().findings) is (checker is not None and not looks)
    assert len(looked) == looks


def test_the_rule_of_a_second_measurement_is_that_of_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold engine that crashes meanwhile is replaced. A calibration is measured again only once."""
    cell = engines()
    lost = cell.oracle_engine
    assert lost is not None
    new = CheckedEngine(ScriptedEngine(caching=False))
    cell.oracle = cell.cold = EngineOracle("cold-engine", lost, [], memo={})
    cell.cold.scores_prompts = True
    noisy_rule = Rule(exact=False, noise=0.5)
    started: Future[CheckedEngine] = Future()
    started.set_result(new)

    def second_calibration(cold: EngineOracle, *_: object, **__: object) -> tuple[object, Rule]:
        cold.use(new)
        return msgspec.structs.replace(cell.calibration, exact=False), noisy_rule

    monkeypatch.setattr(cell_start, "second_calibration", second_calibration)
    monkeypatch.setattr(cell_start, "usable_contents", lambda *_: {})
    cell.pool.cold_engine = lambda _: started  # type: ignore
    cell.pool.looked_again, cell.pool.calibrations, cell.pool.dropped = set(), {}, ()  # type: ignore
    cell.pool.calibration_seconds = 10.0  # type: ignore
    cell.pool.options.seconds = 10.0  # type: ignore
    assert cell.look_again()
    assert cell.rule == cell.own_rule == noisy_rule
    assert cell.live_engine(lost) is cell.oracle_engine is new
    assert cell.pool.calibrations[cell.calibration.cell][1] == noisy_rule
    assert not cell.look_again()
