"""Resets and gaps as the runner records them, and counters that start with the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.histories import SideBySide, ask, burst, contents, play, put

from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Reset, Route, Step, Workload


class Resets(ScriptedEngine):
    """An engine that reports a given result of a reset."""

    def __init__(self, said: bool | EngineError) -> None:
        super().__init__()
        self.said = said

    def reset_cache(self) -> bool:
        """Reset the cache only if the given result is success."""
        if isinstance(self.said, EngineError):
            raise self.said
        return super().reset_cache() if self.said else False


@pytest.mark.parametrize(
    ("said", "success", "cached"),
    [(True, True, 0), (False, False, 40), (RequestRefused(404, "no such route"), False, 40)],
)
def test_a_reset_is_recorded_with_its_reported_result(
    said: bool | EngineError, success: bool, cached: int, tmp_path: Path
) -> None:
    """A refusal is a result and not an error of the step."""
    history = play(Resets(said), tmp_path, burst(ask()), Reset(), burst(ask()))
    (reset,) = history.resets
    first, second = history.outcomes
    assert reset.success is success
    assert first.finished <= reset.began <= reset.ended <= second.sent
    assert [step.error for step in history.steps] == [None, None, None]
    assert second.cached_tokens == cached


def test_an_engine_that_crashes_on_a_reset_is_lost(tmp_path: Path) -> None:
    """No reset is recorded, and nothing more runs."""
    history = play(Resets(EngineDied("gone")), tmp_path, burst(ask()), Reset(), burst(ask()))
    assert (history.resets, history.engine_lost) == ((), "gone")
    assert [step.error for step in history.steps] == [None, "gone"]


class ResetsRunningRequests(ScriptedEngine):
    """An engine whose reset can also cover running requests."""

    def __init__(self) -> None:
        super().__init__()
        self.covered: list[tuple[ResetScope, ...]] = []

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Record the scope and reset."""
        self.covered.append(scope)
        return self.reset_cache()


def test_a_reset_covers_what_its_scope_names(tmp_path: Path) -> None:
    """The record has the scope, and a plain reset covers nothing else."""
    engine, scope = ResetsRunningRequests(), (ResetScope.RUNNING,)
    history = play(engine, tmp_path, burst(ask()), Reset(scope), burst(ask()), Reset())
    assert engine.covered == [scope]
    assert [(reset.scope, reset.success) for reset in history.resets] == [(scope, True), ((), True)]
    assert history.outcomes[1].cached_tokens == 0


def test_a_scope_that_the_engine_does_not_have_is_no_reset(tmp_path: Path) -> None:
    """Not even the prefix cache is reset, because no reset was sent."""
    history = play(ScriptedEngine(), tmp_path, burst(ask()), Reset((ResetScope.SECOND_TIER,)), burst(ask()))
    (reset,) = history.resets
    assert (reset.success, history.outcomes[1].cached_tokens) == (False, 40)


class ResetsOtherCache(ResetsRunningRequests):
    """An engine that can also reset another cache and keep the prefix cache."""

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        """Record the scope."""
        self.covered.append(scope)
        return True


def test_a_reset_of_another_cache_alone_leaves_the_prefix_cache(tmp_path: Path) -> None:
    """It is recorded separately, so that hits after it are expected. An engine without it does not confirm it."""
    step = Reset((ResetScope.ENCODER,), prefix=False)
    engine = ResetsOtherCache()
    history = play(engine, tmp_path, burst(ask()), step, burst(ask()))
    assert (engine.covered, history.resets) == ([step.scope], ())
    assert [(reset.scope, reset.success) for reset in history.side_resets] == [(step.scope, True)]
    assert history.outcomes[1].cached_tokens == 40
    (tmp_path / "without").mkdir()
    (refused,) = play(ResetsRunningRequests(), tmp_path / "without", burst(ask()), step).side_resets
    assert not refused.success


class Paused(SideBySide):
    """An engine whose first request waits at its third token until the cache is reset."""

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Answer, and wait at the third token."""

        def reported(count: int) -> None:
            on_token(count)
            if count == 3:
                self.was_reset.wait()

        return super().send(request, reported)

    def __init__(self) -> None:
        super().__init__()
        self.was_reset = threading.Event()

    def reset_cache(self) -> bool:
        """Release the waiting request. The engine's lock is not used, because it is busy answering."""
        self.was_reset.set()
        return False


def test_a_reset_under_load_overlaps_a_request(tmp_path: Path) -> None:
    """It is not an adapter change, so it widens no identity."""
    busy = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=2))
    history = play(Paused(), tmp_path, busy)
    (reset,), (one,) = history.resets, history.outcomes
    assert one.sent < reset.began <= reset.ended < one.finished
    assert not one.overlapped
    assert history.steps[0].error is None


class Slow(ScriptedEngine):
    """An engine that releases its blocks only after this many samples."""

    def __init__(self, samples: int, gauge: str) -> None:
        super().__init__()
        self.samples, self.gauge = samples, gauge

    def metrics(self) -> Metrics:
        """Return the gauge in use until then."""
        self.samples -= 1
        return msgspec.structs.replace(super().metrics(), **{self.gauge: 0.25 if self.samples >= 0 else 0.0})


def settled(engine: ScriptedEngine, folder: Path, *steps: Step) -> History:
    """Run these steps without waiting between samples."""
    return WorkloadRun(engine, Workload(steps), "n", contents(folder), folder / "run", settle_seconds=0.0).history()


@pytest.mark.parametrize("gauge", ["running", "waiting", "pool_usage"])
@pytest.mark.parametrize(("samples", "held"), [(0, 0.0), (9, 0.0), (999, 0.25)], ids=["at once", "soon", "never"])
def test_a_gap_lasts_until_the_engine_holds_nothing(gauge: str, samples: int, held: float, tmp_path: Path) -> None:
    """The gap also ends at the time limit, and the last sample belongs to the step."""
    history = settled(Slow(samples, gauge), tmp_path, burst(ask()), Idle(0))
    assert getattr(history.steps[-1].after, gauge) == held


def test_a_gap_has_its_minimum_length(tmp_path: Path) -> None:
    """The gap is at least as long as requested."""
    history = settled(ScriptedEngine(), tmp_path, Idle(30))
    assert history.steps[0].finished - history.steps[0].started >= 0.03


def test_there_is_no_gap_where_the_engines_clock_stands_still(tmp_path: Path) -> None:
    """An engine that only its caller steps does nothing meanwhile, so the run does not wait."""

    class Stepped(ScriptedEngine):
        def clock(self) -> float:
            return 1.0

    assert settled(Stepped(), tmp_path, Idle(3_600_000)).steps[0].finished == 0.0


def test_counters_count_from_the_runs_beginning_and_gauges_do_not(tmp_path: Path) -> None:
    """Requests before the run are not part of its history."""
    engine = ScriptedEngine()
    play(engine, tmp_path / "earlier", burst(ask()), burst(ask()))
    assert engine.hit == 40
    engine.leaked = 7
    history = play(engine, tmp_path / "now", burst(ask(("other", 40))), burst(ask(("other", 40))), put("A"))
    readings = [(step.before.hit_tokens, step.after.hit_tokens) for step in history.steps]
    assert readings == [(0, 0), (0, 40), (40, 40)]
    assert [step.after.queried_tokens for step in history.steps] == [44, 88, 88]
    assert {step.after.pool_usage for step in history.steps} == {0.07}


def test_only_bursts_and_gaps_cost_a_sample(tmp_path: Path) -> None:
    """A metrics request costs as much as a token, and nothing else changes a counter."""

    class Watched(ScriptedEngine):
        samples = 0

        def metrics(self) -> Metrics:
            self.samples += 1
            return super().metrics()

    engine = Watched()
    play(engine, tmp_path, put("A"), burst(ask()), Reset(), put("B", route=Route.IN_PLACE), Idle(0))
    assert engine.samples == 3  # the first is the beginning's


def test_what_an_engine_does_not_count_stays_unknown(tmp_path: Path) -> None:
    """The difference of two unknown values is not zero."""

    class Silent(ScriptedEngine):
        def metrics(self) -> Metrics:
            return Metrics(running=0)

    history = play(Silent(), tmp_path, burst(ask()))
    assert history.steps[0].after == Metrics(running=0)
