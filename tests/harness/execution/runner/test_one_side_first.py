"""A change that reaches one of two engines first: what is changed where, what is recorded, and what is evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from support.drawn_workloads import limits
from support.evidence import evidence
from support.histories import SideBySide, ask, burst, contents, history, outcome, play, put

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.sides import Side
from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.sides.evidence import Sides
from coldproof.harness.features.sides.first_workloads import (
    BETWEEN_MS,
    GAP_MS,
    adapters_one_side_first,
    resets_one_side_first,
    weights_one_side_first,
)
from coldproof.harness.history.records import HalfChanged, History
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.session.selftest.selftest import write_versions
from coldproof.harness.workload.describe import describe
from coldproof.harness.workload.steps import (
    Burst,
    Change,
    Idle,
    Meanwhile,
    Pause,
    Reset,
    Route,
    UpdateWeights,
    Workload,
)
from coldproof.harness.workload.validity import is_valid

RELOAD = put("B", route=Route.UNLOAD_LOAD)
PROMPT = range(100, 140)
BETWEEN = 2000  # ms between both sides, where a request has to run between them on a busy machine


class OneSide:
    """One engine of a pair, which records calls and applies them to the pair if it is the last one."""

    def __init__(self, pair: Pair, side: Side) -> None:
        self.pair, self.name = pair, side

    def note(self, words: str) -> bool:
        """Record a call and return whether the pair changes now. Raises RequestRefused if this side refuses."""
        if self.name is self.pair.refuses:
            raise RequestRefused(500, f"{self.name} cannot")
        self.pair.calls.append(f"{self.name} {words}")
        return len({call.split()[0] for call in self.pair.calls}) == 2

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load the adapter on this side."""
        if self.note("load"):
            self.pair.load_adapter(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Unload the adapter on this side."""
        if self.note("unload"):
            self.pair.unload_adapter(name)

    def reset_cache(self) -> bool:
        """Reset this side."""
        return self.pair.reset_cache() if self.note("reset") else True

    def reset_more(self, scope: tuple[ResetScope, ...]) -> bool:
        """Reset this side with a larger scope."""
        return self.pair.reset_cache() if self.note(f"reset with {', '.join(scope)}") else True

    def update_weights(self, path: str, route: WeightRoute) -> None:
        """Update the weights of this side."""
        if self.note("update"):
            self.pair.update_weights(path, route)


class Pair(SideBySide):
    """Two engines that count as changed when the second one is."""

    def __init__(self, *, refuses: Side | None = None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.refuses = refuses

    def side(self, side: Side) -> OneSide:
        """Return one of the two engines."""
        return OneSide(self, side)


def changing(change: Change, first: Side = Side.DECODE, gap_ms: int = 400, adapter: str | None = None) -> Burst:
    """Return two requests during a change, the second of which runs between its halves."""
    meanwhile = Meanwhile(change=change, after_tokens=0, gap_ms=gap_ms, first=first)
    return Burst(requests=(ask(adapter=adapter), ask(adapter=adapter, offset_ms=gap_ms // 2)), meanwhile=meanwhile)


@pytest.mark.parametrize("first", list(Side))
def test_an_adapter_is_loaded_on_one_side_and_then_on_the_other(first: Side, tmp_path: Path) -> None:
    """It is one change: a request between both may have either content, and a later one has the new content."""
    pair, usual = Pair(), burst(ask(adapter="tenant"))
    made = play(pair, tmp_path, put("A"), usual, changing(RELOAD, first, BETWEEN, "tenant"), usual)
    assert pair.calls == [f"{first} unload", f"{first} load", f"{first.other} unload", f"{first.other} load"]
    before, _, between, after = made.outcomes
    assert [len(o.identities) for o in (before, between, after)] == [1, 2, 1]
    assert before.identities + after.identities == between.identities
    assert before.partition.load != after.partition.load
    (half,) = made.half_changed
    assert half.first is first
    assert half.contains(between)


def updated(pair: Pair, folder: Path, *steps: Any) -> History:
    """Return the history of a run with versions of the weights."""
    return WorkloadRun(
        pair, Workload(steps), "n", contents(folder), folder / "run", versions=write_versions(folder)
    ).history()


def test_weights_of_both_sides_are_one_update(tmp_path: Path) -> None:
    """The update lasts until the second side has it, and is undone at the end of the run."""
    pair = Pair()
    made = updated(
        pair, tmp_path, burst(ask()), changing(UpdateWeights(version="A"), gap_ms=BETWEEN), Reset(), burst(ask())
    )
    (update,), (half,) = made.updates, made.half_changed
    assert pair.calls == ["decode update", "prefill update"]
    assert update.began <= half.began <= half.ended <= update.ended
    before, _, between, after = made.outcomes
    assert [len(o.identities) for o in (before, between, after)] == [1, 2, 1]
    assert half.contains(between)
    assert pair.weights is None


def test_weights_of_one_side_alone_are_undone_too(tmp_path: Path) -> None:
    """If the second side refuses, the run must not leave the first one with other weights."""
    pair = Pair(refuses=Side.PREFILL)
    restored: list[str] = []
    pair.update_weights = lambda path, _route: restored.append(path)  # type: ignore[method-assign, assignment]
    made = updated(pair, tmp_path, changing(UpdateWeights(version="A")))
    assert [u.error is None for u in made.updates] == [False]
    assert pair.calls == ["decode update"]
    assert len(restored) == 1


@pytest.mark.parametrize(("refuses", "success"), [(None, True), (Side.DECODE, False), (Side.PREFILL, False)])
def test_a_reset_succeeds_if_both_sides_reset(refuses: Side | None, *, success: bool, tmp_path: Path) -> None:
    """It counts as one reset."""
    made = play(Pair(refuses=refuses), tmp_path, burst(ask()), changing(Reset()))
    assert [one.success for one in made.resets] == [success]


def test_a_reset_of_more_is_one_of_more_on_each_side(tmp_path: Path) -> None:
    """A tier of both sides is reset with the second side at the latest."""
    pair = Pair()
    made = play(pair, tmp_path, burst(ask()), changing(Reset((ResetScope.SECOND_TIER,))))
    assert pair.calls == ["decode reset with the second tier", "prefill reset with the second tier"]
    assert [(one.success, one.scope) for one in made.resets] == [(True, (ResetScope.SECOND_TIER,))]


def test_an_engine_without_sides_refuses(tmp_path: Path) -> None:
    """The step fails with the reason, as it does for a change without halves."""
    made = play(ScriptedEngine(), tmp_path, changing(RELOAD))
    assert "501" in (made.steps[0].error or "")
    made = play(Pair(), tmp_path / "pair", changing(Pause(mode=PauseMode.KEEP, clear=False)), Idle(1))
    assert "no Pause" in (made.steps[0].error or "")


@pytest.mark.parametrize(("began", "ended", "counted"), [(-1.0, 9.0, 1), (0.2, 9.0, 0), (-1.0, 0.3, 0)])
def test_evidence_is_an_answer_between_both_halves(began: float, ended: float, counted: int) -> None:
    """The request was sent at 0 and answered half a second later."""
    made = history(outcome(0, PROMPT), half_changed=(HalfChanged(began, ended, Side.DECODE),))
    assert evidence(made, {})[Sides.HALF_CHANGED] == counted


@pytest.mark.parametrize("family", [adapters_one_side_first, weights_one_side_first, resets_one_side_first])
def test_the_same_prompts_are_sent_between_both_halves_and_afterwards(family: Any) -> None:
    """They are sent in time, and one of them was sent before the change too."""

    @given(family(msgspec.structs.replace(limits(), versions=("A",))))
    @settings(max_examples=20, deadline=None)
    def check(found: Workload) -> None:
        assert is_valid(found)
        at, burst = next((n, s) for n, s in enumerate(found.steps) if isinstance(s, Burst) and s.meanwhile)
        between = {str(one.prompt) for one in burst.requests if one.offset_ms}
        assert {one.offset_ms for one in burst.requests} == {0, BETWEEN_MS}
        assert burst.meanwhile is not None
        assert burst.meanwhile.first
        assert burst.meanwhile.gap_ms == GAP_MS > BETWEEN_MS
        sent = {step: str(r.prompt) for _, step, r in found.requests() if step != at}
        assert between <= {prompt for step, prompt in sent.items() if step > at}
        assert between & {prompt for step, prompt in sent.items() if step < at}

    check()


def test_a_description_says_where_first() -> None:
    """The description also has the delay of the other side."""
    said = describe(changing(Reset(), Side.PREFILL, 300), 0)
    assert said.endswith("reset the prefix cache on the prefill side, and 300 ms later on the other")
