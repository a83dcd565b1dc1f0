"""A run that updates weights and pauses the engine: what it records, and how it leaves the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.histories import ask, burst, contents, outcome
from support.weights import pause

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightPolicy, WeightRoute
from coldproof.harness.execution.runner.requests import ended_by_pause
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History, Identity
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.session.selftest.selftest import write_versions
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Meanwhile,
    Pause,
    Reset,
    Resume,
    Sleep,
    Step,
    UpdateWeights,
    Wake,
    Workload,
)

TO_A, BACK = UpdateWeights(version="A"), UpdateWeights(version=START_WEIGHTS)


class Pausing(ScriptedEngine):
    """A scripted engine that records pauses and sleeps. `refuses`: the version that it does not load."""

    def __init__(self, *, refuses: str = "") -> None:
        super().__init__()
        self.calls: list[str] = []
        self.refuses = refuses
        for capability in (Capability.PAUSE_KEEP, Capability.SLEEP, Capability.SLEEP_DISCARDS):
            self.capabilities[capability] = Support(True, "scripted")

    def update_weights(self, path: str, route: WeightRoute) -> None:
        if self.refuses and path.endswith(self.refuses):
            raise RequestRefused(500, "no such weights")
        self.calls.append(f"load {Path(path).name.partition('-')[2]}")
        super().update_weights(path, route)

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        self.calls.append(f"pause {mode.value} {clear}")

    def resume(self) -> None:
        self.calls.append("resume")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        if level > 1:
            self.weights = "discarded"

    def wake(self, part: SleepPart = SleepPart.ALL) -> None:
        self.calls.append("wake" if part is SleepPart.ALL else f"wake {part.value}")


def run(engine: ScriptedEngine, folder: Path, *steps: Step) -> History:
    """Run these steps with two versions of the weights."""
    return WorkloadRun(
        engine,
        Workload(steps),
        "n",
        contents(folder),
        folder / "run",
        versions=write_versions(folder),
        policy=WeightPolicy.INVALIDATES,
    ).history()


def test_updates_are_recorded_and_undone(tmp_path: Path) -> None:
    """The last update is that of the run, which restores the engine."""
    engine = ScriptedEngine()
    history = run(engine, tmp_path, burst(ask()), TO_A, burst(ask()))
    (update,) = history.updates
    digest = history.weights["A"]
    assert (update.version, update.weights, update.checksum, update.error) == ("A", digest, digest, None)
    assert history.start_checksum == "start"
    assert [o.identities for o in history.outcomes] == [(Identity(None, None),), (Identity(None, None, digest),)]
    assert engine.weights is None
    assert history.policy is WeightPolicy.INVALIDATES
    assert history.describe_identity(history.outcomes[1].identities[0]) == "base model, weights 'A'"


@pytest.mark.parametrize("route", [WeightRoute.PATH, WeightRoute.SAME_PATH])
def test_a_route_decides_the_path(route: WeightRoute, tmp_path: Path) -> None:
    """All versions use one path with the files of the current one, or a path for each."""
    engine = Pausing()
    steps = [UpdateWeights(version=version, route=route) for version in ("A", START_WEIGHTS, "A")]
    history = run(engine, tmp_path, *steps, burst(ask()))
    assert len(set(engine.calls[:3])) == (2 if route is WeightRoute.PATH else 1)
    assert [u.checksum for u in history.updates] == [history.weights["A"], "start", history.weights["A"]]


def test_a_refused_update_fails_its_step_and_changes_no_identity(tmp_path: Path) -> None:
    """The weights are those before the update."""
    history = run(Pausing(refuses="weights-A"), tmp_path, TO_A, burst(ask()))
    assert "no such weights" in (history.steps[0].error or "")
    assert [u.error is None for u in history.updates] == [False]
    assert history.outcomes[0].identities == (Identity(None, None),)


def test_an_engine_that_does_not_return_is_lost(tmp_path: Path) -> None:
    """Its next run would be compared with the wrong weights."""
    engine = Pausing(refuses=f"weights-{START_WEIGHTS}")
    history = run(engine, tmp_path, TO_A, burst(ask()))
    assert "could not return to the weights" in (history.engine_lost or "")
    assert not engine.alive()


def test_an_engine_without_a_route_refuses(tmp_path: Path) -> None:
    """The refusal has the evidence of the capability."""
    history = run(ScriptedEngine(), tmp_path, Pause(mode=PauseMode.KEEP, clear=True), Sleep(1))
    assert ["no way to pause" in (step.error or "") for step in history.steps] == [True, True]


def test_what_clears_the_cache_is_a_reset(tmp_path: Path) -> None:
    """A clearing pause and a sleep from level 1 on count as resets. Each pause has its end."""
    engine = Pausing()
    steps = [Pause(mode=PauseMode.KEEP, clear=clear) for clear in (True, False)]
    history = run(engine, tmp_path, steps[0], Resume(), steps[1], Resume(), Sleep(0), Wake(), Sleep(1), Wake())
    assert [p.clear for p in history.pauses] == [True, False, False, True]
    assert [p.level for p in history.pauses] == [None, None, 0, 1]
    assert all(p.running is not None for p in history.pauses)
    assert [r.success for r in history.resets] == [True, True]


def test_a_paused_engine_is_resumed_at_the_end(tmp_path: Path) -> None:
    """Otherwise the next run would hang, whatever the workload left out."""
    engine = Pausing()
    run(engine, tmp_path, Pause(mode=PauseMode.KEEP, clear=False))
    run(engine, tmp_path / "again", Sleep(1))
    assert engine.calls == ["pause keep False", "resume", "sleep 1", "wake"]


DEEP = (Sleep(2), Wake(SleepPart.WEIGHTS), TO_A, Wake(SleepPart.KV))


def test_weights_are_loaded_between_the_parts_of_a_wake_up(tmp_path: Path) -> None:
    """The sleep lasts until the KV is awake again, so the update is within it.

    The checksum of the start is taken before the weights are discarded.
    """
    engine = Pausing()
    history = run(engine, tmp_path, *DEEP, burst(ask()))
    assert engine.calls[:4] == ["sleep 2", "wake the weights", "load A", "wake the KV cache"]
    (sleep,), (update,) = history.pauses, history.updates
    assert sleep.contains(update.began)
    assert sleep.contains(update.ended)
    assert history.start_checksum == "start"
    assert engine.weights is None


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        (DEEP[:1], ["wake", f"load {START_WEIGHTS}"]),
        (DEEP[:2], ["wake the KV cache", f"load {START_WEIGHTS}"]),
        (DEEP[:3], ["wake the KV cache", f"load {START_WEIGHTS}"]),
    ],
)
def test_discarded_weights_are_loaded_at_the_end(tmp_path: Path, steps: tuple[Step, ...], ends: list[str]) -> None:
    """The run may stop at any step. An engine is not woken twice, because engines refuse that."""
    engine = Pausing()
    run(engine, tmp_path, *steps)
    assert engine.calls[len(steps) :] == ends
    assert engine.weights is None


def test_changes_during_a_burst_are_made_in_order(tmp_path: Path) -> None:
    """All changes happen, even if the only request has ended. Later requests have the new weights."""
    engine = Pausing()
    then = (TO_A, Resume(), Reset())
    meanwhile = Meanwhile(change=Pause(mode=PauseMode.KEEP, clear=True), after_tokens=1, then=then, gap_ms=1)
    history = run(engine, tmp_path, Burst(requests=(ask(),), meanwhile=meanwhile), burst(ask()))
    assert engine.calls[:3] == ["pause keep True", "load A", "resume"]
    assert history.outcomes[1].identities == (Identity(None, None, history.weights["A"]),)
    assert history.steps[0].error is None
    assert len(history.resets) == 2


def test_after_an_error_only_the_end_of_a_pause_is_made(tmp_path: Path) -> None:
    """Otherwise everything after it would wait forever."""
    engine = Pausing(refuses="weights-A")
    meanwhile = Meanwhile(change=Pause(mode=PauseMode.KEEP, clear=True), after_tokens=1, then=(TO_A, Reset(), Resume()))
    history = run(engine, tmp_path, Burst(requests=(ask(),), meanwhile=meanwhile))
    assert engine.calls == ["pause keep True", "resume"]
    assert "no such weights" in (history.steps[0].error or "")
    assert len(history.resets) == 1


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({"finish_reason": "abort"}, True),
        ({"finish_reason": None, "tokens": ()}, True),  # vLLM's server, before the first token
        ({"finish_reason": None}, False),
        ({"finish_reason": "length"}, False),
        ({"finish_reason": "abort", "sent": 3.0, "finished": 4.0}, False),  # after the pause nobody may end it
        ({"finish_reason": None, "tokens": (), "error": "no connection"}, False),
    ],
)
def test_a_pause_ends_requests_and_nothing_else_does(changes: dict[str, Any], *, ended: bool) -> None:
    """An answer that ends early without a pause in abort mode is judged as too short."""
    facts = {"sent": 0.5, "finished": 1.5, **changes}
    one = outcome(0, range(40), **facts)
    paused = (pause(1.0, 2.0, PauseMode.ABORT),)
    assert (ended_by_pause(one, paused).aborted is not None) is ended
    assert ended_by_pause(one, (pause(1.0, 2.0, PauseMode.KEEP),)).aborted is None
