"""Resets and gaps as the runner writes them down, and counters that count from its beginning."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.histories import SideBySide, ask, burst, contents, play, put

from coldproof.adapters.protocol.engine import EngineDied, EngineError, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Abort, Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Reset, Route, Step, Workload


class Resets(ScriptedEngine):
    """Says what it is told to say of a reset."""

    def __init__(self, said: bool | EngineError) -> None:
        super().__init__()
        self.said = said

    def reset_cache(self) -> bool:
        """Do it if it is said to be done."""
        if isinstance(self.said, EngineError):
            raise self.said
        return super().reset_cache() if self.said else False


@pytest.mark.parametrize(
    ("said", "success", "cached"),
    [(True, True, 0), (False, False, 40), (RequestRefused(404, "no such route"), False, 40)],
)
def test_a_reset_is_recorded_with_what_the_engine_says_of_it(
    said: bool | EngineError, success: bool, cached: int, tmp_path: Path
) -> None:
    """A refusal is an answer and no error of the step; what was there is hit or not."""
    history = play(Resets(said), tmp_path, burst(ask()), Reset(), burst(ask()))
    (reset,) = history.resets
    first, second = history.outcomes
    assert reset.success is success
    assert first.finished <= reset.began <= reset.ended <= second.sent
    assert [step.error for step in history.steps] == [None, None, None]
    assert second.cached_tokens == cached


def test_an_engine_that_dies_of_a_reset_is_lost(tmp_path: Path) -> None:
    """No reset is recorded, and nothing more is run."""
    history = play(Resets(EngineDied("gone")), tmp_path, burst(ask()), Reset(), burst(ask()))
    assert (history.resets, history.engine_lost) == ((), "gone")
    assert [step.error for step in history.steps] == [None, "gone"]


class ResetsMuch(ScriptedEngine):
    """Its reset can cover running requests as well."""

    def __init__(self) -> None:
        super().__init__()
        self.covered: list[tuple[ResetScope, ...]] = []

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Write down what it covered."""
        self.covered.append(scope)
        return self.reset_cache()


def test_a_reset_covers_what_its_scope_names(tmp_path: Path) -> None:
    """The record says so; a plain reset is no reset of anything else."""
    engine, scope = ResetsMuch(), (ResetScope.RUNNING,)
    history = play(engine, tmp_path, burst(ask()), Reset(scope), burst(ask()), Reset())
    assert engine.covered == [scope]
    assert [(reset.scope, reset.success) for reset in history.resets] == [(scope, True), ((), True)]
    assert history.outcomes[1].cached_tokens == 0


def test_a_scope_that_the_engine_does_not_have_is_no_reset(tmp_path: Path) -> None:
    """Not even one of its prefix cache: nothing was asked of it."""
    history = play(ScriptedEngine(), tmp_path, burst(ask()), Reset((ResetScope.SECOND_TIER,)), burst(ask()))
    (reset,) = history.resets
    assert (reset.success, history.outcomes[1].cached_tokens) == (False, 40)


class ResetsBesideIt(ResetsMuch):
    """It can also reset another cache and leave the prefix cache."""

    def reset_beside(self, scope: tuple[ResetScope, ...]) -> bool:
        """Write down what it covered."""
        self.covered.append(scope)
        return True


def test_a_reset_of_another_cache_alone_leaves_the_prefix_cache(tmp_path: Path) -> None:
    """It is recorded apart, so that hits after it are expected. An engine without it does not confirm it."""
    step = Reset((ResetScope.ENCODER,), prefix=False)
    engine = ResetsBesideIt()
    history = play(engine, tmp_path, burst(ask()), step, burst(ask()))
    assert (engine.covered, history.resets) == ([step.scope], ())
    assert [(reset.scope, reset.success) for reset in history.side_resets] == [(step.scope, True)]
    assert history.outcomes[1].cached_tokens == 40
    (tmp_path / "without").mkdir()
    (refused,) = play(ResetsMuch(), tmp_path / "without", burst(ask()), step).side_resets
    assert not refused.success


class Paused(SideBySide):
    """Its first request waits at the third token until the cache was reset."""

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Wait in the midst."""

        def told(count: int) -> None:
            on_token(count)
            if count == 3:
                self.was_reset.wait()

        return super().send(request, told)

    def __init__(self) -> None:
        super().__init__()
        self.was_reset = threading.Event()

    def reset_cache(self) -> bool:
        """Without the engine's lock: it is busy answering."""
        self.was_reset.set()
        return False


def test_a_reset_under_load_falls_into_the_life_of_a_request(tmp_path: Path) -> None:
    """And widens no identity: it is no adapter change."""
    busy = Burst(requests=(ask(),), meanwhile=Meanwhile(change=Reset(), after_tokens=2))
    history = play(Paused(), tmp_path, busy)
    (reset,), (one,) = history.resets, history.outcomes
    assert one.sent < reset.began <= reset.ended < one.finished
    assert not one.overlapped
    assert history.steps[0].error is None


class Slow(ScriptedEngine):
    """Lets go of what it held only when it has been looked at so many times."""

    def __init__(self, looks: int, gauge: str) -> None:
        super().__init__()
        self.looks, self.gauge = looks, gauge

    def metrics(self) -> Metrics:
        """Held, until then."""
        self.looks -= 1
        return msgspec.structs.replace(super().metrics(), **{self.gauge: 0.25 if self.looks >= 0 else 0.0})


def settled(engine: ScriptedEngine, folder: Path, *steps: Step) -> History:
    """Run without waiting between looks."""
    return WorkloadRun(engine, Workload(steps), "n", contents(folder), folder / "run", settle_seconds=0.0).history()


@pytest.mark.parametrize("gauge", ["running", "waiting", "pool_usage"])
@pytest.mark.parametrize(("looks", "held"), [(0, 0.0), (9, 0.0), (999, 0.25)], ids=["at once", "soon", "never"])
def test_a_gap_lasts_until_the_engine_holds_nothing(gauge: str, looks: int, held: float, tmp_path: Path) -> None:
    """Or has had ample time to say so; the last look is the step's."""
    history = settled(Slow(looks, gauge), tmp_path, burst(ask()), Idle(0))
    assert getattr(history.steps[-1].after, gauge) == held


def test_a_gap_is_a_gap(tmp_path: Path) -> None:
    """At least as long as asked."""
    history = settled(ScriptedEngine(), tmp_path, Idle(30))
    assert history.steps[0].finished - history.steps[0].started >= 0.03


def test_there_is_no_gap_where_the_engines_clock_stands_still(tmp_path: Path) -> None:
    """An engine that only its caller steps does nothing meanwhile: the run does not wait for an hour."""

    class Stepped(ScriptedEngine):
        def clock(self) -> float:
            return 1.0

    assert settled(Stepped(), tmp_path, Idle(3_600_000)).steps[0].finished == 0.0


def test_counters_count_from_the_runs_beginning_and_gauges_do_not(tmp_path: Path) -> None:
    """An engine's earlier life is no part of this history."""
    engine = ScriptedEngine()
    play(engine, tmp_path / "earlier", burst(ask()), burst(ask()))
    assert engine.hit == 40
    engine.leaked = 7
    history = play(engine, tmp_path / "now", burst(ask(("other", 40))), burst(ask(("other", 40))), put("A"))
    readings = [(step.before.hit_tokens, step.after.hit_tokens) for step in history.steps]
    assert readings == [(0, 0), (0, 40), (40, 40)]
    assert [step.after.queried_tokens for step in history.steps] == [44, 88, 88]
    assert {step.after.pool_usage for step in history.steps} == {0.07}


def test_only_bursts_and_gaps_cost_a_look(tmp_path: Path) -> None:
    """A scrape is as dear as a token, and nothing else moves a counter."""

    class Watched(ScriptedEngine):
        looks = 0

        def metrics(self) -> Metrics:
            self.looks += 1
            return super().metrics()

    engine = Watched()
    play(engine, tmp_path, put("A"), burst(ask()), Reset(), put("B", route=Route.IN_PLACE), Idle(0))
    assert engine.looks == 3  # the first is the beginning's


def test_what_an_engine_does_not_count_stays_unknown(tmp_path: Path) -> None:
    """Unknown minus unknown is not zero."""

    class Silent(ScriptedEngine):
        def metrics(self) -> Metrics:
            return Metrics(running=0)

    history = play(Silent(), tmp_path, burst(ask()))
    assert history.steps[0].after == Metrics(running=0)


def test_such_a_history_survives_json(tmp_path: Path) -> None:
    """Whoever judges it later has only the file."""
    steps: list[Step] = [
        put("A"),
        burst(
            ask(adapter="tenant"), ask(abort=Abort(after_tokens=1)), ask(surface=ResponseOptions(prompt_logprobs=True))
        ),
        Reset(),
        Idle(0),
        burst(ask(("prelude", 9), ("q", 4), chat=True, priority=3)),
        put("B", route=Route.IN_PLACE),
    ]
    history = settled(ScriptedEngine(), tmp_path, *steps)
    assert msgspec.json.decode(msgspec.json.encode(history), type=History) == history
