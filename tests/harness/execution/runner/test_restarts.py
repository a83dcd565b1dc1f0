"""A restart replaces the engine by another one. The history continues and records whose KV is whose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.histories import ask, burst, contents, put

from coldproof.adapters.protocol.engine import EngineStartError, RequestRefused
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.tiers.evidence import Tiers
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.oracle import comparable_outcomes
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, ScriptedEngine
from coldproof.harness.workload.steps import Restart, RestoreState, SaveState, Step, Workload

WEIGHTS = EngineChange.WEIGHTS


class StartsElsewhere(ScriptedEngine):
    """An engine whose clock and counters begin elsewhere, and which finds the blocks of the previous engine."""

    def __init__(self, before: ScriptedEngine, *, keeps: bool) -> None:
        super().__init__()
        self.queried = self.hit = 1000
        if keeps:
            self.blocks = before.blocks

    def clock(self) -> float:
        return super().clock() - 5000


def restarted(
    folder: Path, *steps: Step, keeps: bool = True, fails: bool = False
) -> tuple[History, list[EngineChange], list[ScriptedEngine]]:
    """Run these steps. Return the history, the change of each later engine, and all engines."""
    engines, changes = [ScriptedEngine()], []

    def following(change: EngineChange) -> ScriptedEngine:
        if fails:
            raise EngineStartError("no room")
        changes.append(change)
        engines.append(StartsElsewhere(engines[-1], keeps=keeps))
        return engines[-1]

    made = WorkloadRun(
        engines[0], Workload(steps), "n", contents(folder), folder / "run", next_engine=following, settle_seconds=0.0
    )
    return made.history(), changes, engines


def test_each_engine_is_started_with_its_own_difference(tmp_path: Path) -> None:
    """The last engine has no difference. Requests record the engine on which they ran."""
    steps = (burst(ask()), Restart(WEIGHTS), burst(ask()), Restart(EngineChange.ROPE), burst(ask()))
    history, changes, _ = restarted(tmp_path, *steps)
    assert changes == [EngineChange.ROPE, EngineChange.NOTHING]
    engines = [outcome.identities[0].engine for outcome in history.outcomes]
    assert engines == [WEIGHTS, EngineChange.ROPE, EngineChange.NOTHING]


def test_times_and_counters_go_on(tmp_path: Path) -> None:
    """Clock and counters of a new engine start again."""
    history, _, engines = restarted(tmp_path, burst(ask()), Restart(), burst(ask()), burst(ask()), keeps=False)
    assert [step.error for step in history.steps] == [None] * 4
    assert [o.cached_tokens for o in history.outcomes] == [0, 0, 40]
    assert [step.after.hit_tokens for step in history.steps] == [0, 0, 0, 40]
    assert [step.after.queried_tokens for step in history.steps] == [44, 44, 88, 132]
    times = [at for step in history.steps for at in (step.started, step.finished)]
    assert times == sorted(times)
    assert times[-1] < 60
    assert engines[1].contents == {}


def test_adapters_are_loaded_again_after_a_restart(tmp_path: Path) -> None:
    """The new engine has no adapters."""
    steps = (put("A", path="p"), burst(ask(adapter="tenant")), Restart(), put("B", path="p"))
    history, _, engines = restarted(tmp_path, *steps, burst(ask(adapter="tenant")))
    assert [step.error for step in history.steps] == [None] * 5
    assert len({outcome.identities[0].adapter for outcome in history.outcomes}) == 2
    assert engines[1].contents == {}  # unloaded in the end


def test_without_a_next_engine_a_restart_is_refused(tmp_path: Path) -> None:
    """The step has the reason."""
    run = WorkloadRun(ScriptedEngine(), Workload((burst(ask()), Restart())), "n", contents(tmp_path), tmp_path / "run")
    assert "no KV is kept when the engine ends" in (run.history().steps[1].error or "")


def test_an_engine_that_does_not_start_over_what_was_left_is_lost(tmp_path: Path) -> None:
    """The engine had started with an empty storage before."""
    history, _, _ = restarted(tmp_path, burst(ask()), Restart(), burst(ask()), fails=True)
    assert "does not start over the storage of the one before: no room" in (history.engine_lost or "")
    assert len(history.outcomes) == 1


@pytest.mark.parametrize("change", [WEIGHTS, EngineChange.NOTHING])
def test_kv_of_a_different_engine_must_not_be_hit(change: EngineChange, tmp_path: Path) -> None:
    """Its answers are compared with nothing, and the next engine must not hit what it computed; an equal engine may."""
    history, _, _ = restarted(tmp_path, burst(ask()), Restart(change), burst(ask()))
    judged = judge(history, ClosedFormOracle(), EXACT, exclusive=True)
    found = [(one.checker, one.failure_class) for one in judged.findings if one.checker == "bounds"]
    assert found == ([("bounds", FailureClass.STALE_STATE)] if change is WEIGHTS else [])
    counted = {Tiers.AFTER_OTHER_ENGINE: change is WEIGHTS, Tiers.LOADED_AFTER_RESTART: change is not WEIGHTS}
    assert {name: bool(judged.evidence[name]) for name in counted} == counted
    assert [o.request for o in comparable_outcomes(history)] == ([1] if change is WEIGHTS else [0, 1])


def test_kv_lost_by_a_restart_is_not_expected(tmp_path: Path) -> None:
    """Whether KV survives an engine is not required."""
    history, _, _ = restarted(tmp_path, burst(ask()), Restart(), burst(ask()), keeps=False)
    judged = judge(history, ClosedFormOracle(), EXACT, exclusive=True)
    assert judged.findings == ()
    assert not judged.evidence[Tiers.LOADED_AFTER_RESTART]


def test_a_hit_of_what_the_same_engine_computed_shows_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """A hit without a restart shows nothing either."""
    history, _, _ = restarted(tmp_path, burst(ask(("strange", 40))), Restart(), burst(ask()), burst(ask()), keeps=False)
    for seen in (history, restarted(tmp_path / "two", burst(ask()), burst(ask()))[0]):
        assert seen.outcomes[-1].cached_tokens == 40
        found = judge(seen, ClosedFormOracle(), EXACT, exclusive=True).evidence
        assert not found[Tiers.LOADED_AFTER_RESTART]
        assert not found[Tiers.AFTER_OTHER_ENGINE]


class Saves(ScriptedEngine):
    """An engine that saves its state and restores it by a given function."""

    def __init__(self, restore: Callable[[], int]) -> None:
        super().__init__()
        self.restore = restore

    def save_state(self, _name: str) -> int:
        return 40

    def restore_state(self, _name: str) -> int:
        return self.restore()


@pytest.mark.parametrize(("change", "error"), [(EngineChange.KV_FORMAT, False), (EngineChange.NOTHING, True)])
def test_the_saved_state_of_a_different_engine_may_be_refused(
    change: EngineChange, error: bool, tmp_path: Path
) -> None:
    """The refusal is allowed if the engine was different. An equal engine has to accept the state."""

    def refuse() -> int:
        raise RequestRefused(400, "another type of KV")

    engine, steps = Saves(refuse), (burst(ask()), SaveState("kept"), Restart(change), RestoreState("kept"))
    history = WorkloadRun(
        engine, Workload(steps), "n", contents(tmp_path), tmp_path / "run", next_engine=lambda _: engine
    ).history()
    assert (history.steps[3].error is not None) is error
    assert history.steps[3].moved_tokens == (None if error else 0)
