"""An engine that may carry on what a failure left in it is replaced; what an engine has run is remembered."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakKeyDictionary

import pytest

from adapters.checked import CheckedEngine
from harness import prover
from harness.bench import REMEMBERED
from harness.checkers.finding import Finding, Rule
from harness.history import History
from harness.judge import Judgement
from harness.prover import Prover
from harness.requirement import Ran, Trial
from harness.workload import Workload
from reports.schema import FailureClass
from tests.histories import history


class Held:
    """An engine in name only."""

    def alive(self) -> bool:
        """It is."""
        return True


class Worn(Prover):
    """A bench without engines: each run ends in what it is told, and replacing is noted."""

    def __init__(
        self, checker: str | None, *, engine: str = "vllm-inproc", attached: bool = False, lost: str | None = None
    ) -> None:
        self.engine, self.oracle_engine = (cast(CheckedEngine, Held()) for _ in range(2))
        self.session = cast(
            Any,
            SimpleNamespace(
                options=SimpleNamespace(attached=attached, quick=engine == "vllm-inproc"),
                log=SimpleNamespace(emit=self.note),
            ),
        )
        self.trial = cast(
            Trial,
            SimpleNamespace(renewed=0, requirement=SimpleNamespace(id="LORA-1", overlapped_too=True, hashes_too=True)),
        )
        self.oracle, self.rule = cast(Any, None), cast(Rule, None)
        self.successors, self.ran = {}, WeakKeyDictionary()
        self.checker, self.renewals, self.lost = checker, 0, lost

    def note(self, *_: Any, **__: Any) -> None:
        """Nobody reads it."""

    def run(self, engine: CheckedEngine, workload: Workload, nonce: str | None = None) -> History:
        """A history in which the judge is going to find what he is told."""
        return history(engine_lost=self.lost)

    def replaced(self, engine: CheckedEngine, *, lost: bool = True) -> CheckedEngine:
        """Count it."""
        assert lost is (self.lost is not None)
        self.renewals += 1
        return engine


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the judge find something of a checker's."""

    def tell(worn: Worn) -> Worn:
        finding = Finding(checker=worn.checker or "", failure_class=FailureClass.ACCOUNTING, sentence="Something.")
        found = (finding,) if worn.checker else ()
        judgement = Judgement(history=history(), answers={}, findings=found, noise=(), evidence={})
        monkeypatch.setattr(prover, "judge", lambda *_, **__: judgement)
        return worn

    return tell


@pytest.mark.parametrize(("checker", "times"), [("conservation", 3), ("liveness", 3), ("tokens", 0), (None, 0)])
def test_what_may_stay_in_an_engine_has_it_replaced(told: Any, checker: str | None, times: int) -> None:
    """A wrong answer stays in none that forgets; blocks that nobody holds do."""
    worn = told(Worn(checker))
    for _ in range(3):
        worn.observe(worn.engine, history().workload)
    assert worn.renewals == times


@pytest.mark.parametrize(("more", "times"), [({"engine": "vllm"}, 1), ({"engine": "endpoint", "attached": True}, 0)])
def test_where_starting_is_slow_it_is_done_once_and_somebody_elses_server_is_left_alone(
    told: Any, more: dict[str, Any], times: int
) -> None:
    """In a trial."""
    worn = told(Worn("conservation", **more))
    for _ in range(3):
        worn.observe(worn.engine, history().workload)
    assert worn.renewals == times


@pytest.mark.parametrize(("attached", "alive", "times"), [(True, True, 0), (True, False, 1), (False, True, 1)])
def test_a_server_that_only_stood_still_is_judged(
    told: Any, monkeypatch: pytest.MonkeyPatch, attached: bool, alive: bool, times: int
) -> None:
    """Somebody's server cannot be replaced, and a hang of it is what was looked for. One of ours is started anew."""
    worn = told(Worn("tokens", attached=attached, lost="nothing moved for 20 s"))
    monkeypatch.setattr(Held, "alive", lambda _: alive)
    monkeypatch.setattr(worn, "living", lambda engine: engine)
    assert worn.observe(worn.engine, history().workload).findings
    assert worn.renewals == times


@pytest.mark.parametrize(("familiar", "whole", "seconds"), [(False, 180, 180), (True, 180, 15), (True, 2, 2)])
def test_what_a_known_issue_may_waive_is_not_made_small_at_leisure(
    familiar: bool, whole: float, seconds: float
) -> None:
    """Its signature is all that is looked at; a short patience stays as short."""
    worn = Worn(None)
    worn.session.profile = cast(Any, SimpleNamespace(shrink_seconds=whole))
    assert worn.patience(cast(Trial, SimpleNamespace(familiar=familiar))) == seconds


def test_the_cold_engine_and_fresh_ones_are_not_the_one_under_test(told: Any) -> None:
    """They are looked after elsewhere."""
    worn = told(Worn("conservation"))
    for engine in (worn.oracle_engine, cast(CheckedEngine, Held())):
        worn.observe(engine, history().workload)
    assert worn.renewals == 0


def test_what_the_engine_under_test_has_run_is_told() -> None:
    """Another engine was asked questions as well, which nobody noted."""
    worn = Worn(None)
    ran = Ran(history().workload, "n", 1.0)
    for engine in (worn.engine, worn.oracle_engine):
        worn.ran[engine] = deque([ran], maxlen=REMEMBERED)
    assert worn.ran_on(worn.engine) == (ran,)
    assert worn.ran_on(worn.oracle_engine) == ()
    assert worn.ran_on(cast(CheckedEngine, Held())) == ()
