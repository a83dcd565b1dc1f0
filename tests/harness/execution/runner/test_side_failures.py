"""A killed side: what a run records, how its requests are judged, and what counts as evidence."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import find, given, settings
from support.drawn_workloads import limits, requests_of
from support.evidence import evidence
from support.histories import ask, burst, contents, history, outcome, play

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, RequestRefused
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.sides.evidence import Sides
from coldproof.harness.features.sides.failure_workloads import LATE_MS, failing_sides, failing_tiers, late_hand_overs
from coldproof.harness.history.records import SideRestart
from coldproof.harness.judgement.checkers.cached_tokens import check_accounting
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.steps import Burst, Idle, Meanwhile, Reset, RestartSide, Workload, all_changes
from coldproof.harness.workload.validity import is_valid

PROMPT = range(100, 140)


class Pair(ScriptedEngine):
    """A pair that loses its cache and its counters with the prefiller."""

    def restart_side(self, side: Side) -> None:
        """Restart a side."""
        if side is Side.PREFILL:
            self.reset_cache()
            self.hit = self.queried = 0


def test_the_cache_ends_with_the_prefiller_and_counters_go_on(tmp_path: Path) -> None:
    """A later request must not hit earlier blocks, and no counter decreases."""
    made = play(Pair(), tmp_path, burst(ask()), burst(ask()), RestartSide(Side.PREFILL), burst(ask()), burst(ask()))
    assert [one.cached_tokens for one in made.outcomes] == [0, 40, 0, 40]
    (restart,), (reset,) = made.side_restarts, made.resets
    assert (restart.side, reset.success) == (Side.PREFILL, True)
    assert made.outcomes[1].finished <= restart.began <= restart.ended <= made.outcomes[2].sent
    assert [record.after.hit_tokens for record in made.steps] == [0, 40, 40, 40, 80]


def test_the_prefillers_cache_outlives_the_decoder(tmp_path: Path) -> None:
    """Its hits are therefore still expected."""
    made = play(Pair(), tmp_path, burst(ask()), RestartSide(Side.DECODE), burst(ask()))
    assert made.outcomes[1].cached_tokens == 40
    assert made.resets == ()


def test_an_engine_without_sides_refuses(tmp_path: Path) -> None:
    """The step fails with the reason."""
    made = play(ScriptedEngine(), tmp_path, burst(ask()), RestartSide(Side.DECODE))
    assert "501" in (made.steps[1].error or "")


def test_a_side_that_does_not_start_again_is_an_error(tmp_path: Path) -> None:
    """Nothing more runs on a pair that has crashed."""

    class SideFailsToRestart(Pair):
        def restart_side(self, side: Side) -> None:
            raise EngineDied(f"{side} is gone")

    made = play(SideFailsToRestart(), tmp_path, RestartSide(Side.PREFILL), burst(ask()))
    assert (made.engine_lost, made.outcomes, made.side_restarts) == ("prefill is gone", (), ())


def test_a_restart_of_the_tier_keeps_the_pool(tmp_path: Path) -> None:
    """Hits of the pool are still expected. A later load is evidence that the tier is used again."""
    made = play(Pair(), tmp_path, burst(ask()), RestartSide(Side.TIER), burst(ask()))
    (restart,) = made.side_restarts
    assert (restart.side, made.resets, made.outcomes[1].cached_tokens) == (Side.TIER, (), 40)
    loading = tuple(
        msgspec.structs.replace(
            record,
            before=msgspec.structs.replace(record.before, external_hit_tokens=32 * number),
            after=msgspec.structs.replace(record.after, external_hit_tokens=32 * number + 32),
        )
        for number, record in enumerate(made.steps)
    )
    found = evidence(msgspec.structs.replace(made, steps=loading), {})
    assert (found[Sides.TIER_RESTARTS], found[Sides.SIDE_RESTARTS]) == (1, 0)
    assert (found[Sides.AFTER_SIDE_RESTART], found[Sides.LOADED_FROM_RESTARTED]) == (1, 32)


@pytest.mark.parametrize(("side", "counted"), [(Side.TIER, 40), (Side.DECODE, 0)])
def test_counters_continue_if_no_engine_ends(tmp_path: Path, side: Side, counted: int) -> None:
    """Counts before the end of a tier's server are evidence too, but an engine's counts end with it."""
    change = Meanwhile(change=RestartSide(side), after_tokens=1)
    made = play(Pair(), tmp_path, burst(ask()), Burst(requests=(ask(),), meanwhile=change))
    assert len(made.side_restarts) == 1
    assert made.steps[-1].after.hit_tokens == counted


@pytest.mark.parametrize("side", list(Side))
def test_each_side_has_its_own_reason_why_it_cannot_be_restarted(side: Side) -> None:
    """An engine may be able to restart its tier and not its sides."""
    engine = Pair()
    engine.capabilities = engine.capabilities | {one.failures: Support(False, f"no {one.failures}") for one in Side}
    with pytest.raises(RequestRefused, match=re.escape(side.failures.value)):
        CheckedEngine(engine).restart_side(side)


@pytest.mark.parametrize(
    ("began", "ended", "excused"), [(0.2, 0.3, True), (0.5, 3.0, True), (0.6, 3.0, False), (-2.0, -1.0, False)]
)
def test_an_error_is_right_only_while_a_side_is_down(began: float, ended: float, *, excused: bool) -> None:
    """Before and after the restart every request has to be answered. An answer is always judged."""
    lost = msgspec.structs.replace(outcome(0, PROMPT, answer=()), error="a side does not answer")
    made = history(lost, side_restarts=(SideRestart(began, ended, Side.DECODE),))
    assert (check_liveness(made) == []) is excused


def test_a_restart_does_not_excuse_a_missing_answer() -> None:
    """A silent request got neither an answer nor an error."""
    lost = msgspec.structs.replace(outcome(0, PROMPT, answer=()), error="no progress", silent=True)
    made = history(lost, side_restarts=(SideRestart(0.2, 0.3, Side.TIER),))
    (found,) = check_liveness(made)
    assert (found.failure_class, found.request) == (FailureClass.HANG, 0)


def test_a_killed_sides_counters_are_not_compared() -> None:
    """The side may have counted requests that got an error."""
    wrong = history(outcome(0, PROMPT, cached_tokens=5), outcome(1, PROMPT, cached_tokens=5))
    counted = msgspec.structs.replace(wrong, steps=wrong.steps[:1] * 2)
    assert check_accounting(counted, exclusive=True)
    restarted = msgspec.structs.replace(counted, side_restarts=(SideRestart(0.6, 0.7, Side.PREFILL),))
    assert check_accounting(restarted, exclusive=True) == []


@pytest.mark.parametrize(("prompt", "known"), [(PROMPT, 1), (range(100, 105), 0), (range(200, 240), 0)])
def test_evidence_is_an_answer_to_an_earlier_prompt(prompt: range, known: int) -> None:
    """At least one block of the prompt was computed before."""
    made = history(outcome(0, PROMPT), outcome(1, prompt), side_restarts=(SideRestart(0.6, 0.8, Side.DECODE),))
    found = evidence(made, {})
    assert (found[Sides.SIDE_RESTARTS], found[Sides.AFTER_SIDE_RESTART]) == (1, known)


@pytest.mark.parametrize(("hand_over_ms", "late"), [(None, 0), (400, 1), (500, 1), (501, 0)])
def test_a_hand_over_is_late_if_the_answer_took_as_long(hand_over_ms: int | None, late: int) -> None:
    """A router that does not know the header delays nothing, so nothing was tested. The answer took 0.5 s."""
    request = ask() if hand_over_ms is None else msgspec.structs.replace(ask(), hand_over_ms=hand_over_ms)
    made = history(outcome(0, PROMPT), workload=Workload((burst(request),)))
    assert evidence(made, {})[Sides.LATE] == late


@given(failing_sides(limits()))
@settings(max_examples=40, deadline=None)
def test_earlier_prompts_are_sent_again_after_a_side_has_ended(found: Workload) -> None:
    """At least one of them is sent on its own after the only change."""
    assert is_valid(found)
    (at,) = (
        n
        for n, step in enumerate(found.steps)
        if isinstance(step, RestartSide) or (isinstance(step, Burst) and step.meanwhile)
    )
    (change,) = all_changes(Workload(tuple(s for s in found.steps if isinstance(s, (RestartSide, Burst)))))
    assert isinstance(change, RestartSide)
    before = {str(r.prompt) for _, step, r in found.requests() if step <= at}
    assert before & {str(r.prompt) for _, step, r in found.requests() if step > at}


@pytest.mark.parametrize("apart", [True, False])
def test_a_tier_is_used_again_after_its_server_has_ended(*, apart: bool) -> None:
    """A new prompt is sent twice; if one engine has stored it itself, its pool is emptied in between."""
    can = frozenset(Capability) - (frozenset() if apart else {Capability.PREFILL_APART})
    found = find(failing_tiers(msgspec.structs.replace(limits(), can=can)), lambda _: True)
    (change,) = all_changes(Workload(tuple(s for s in found.steps if isinstance(s, (RestartSide, Burst)))))
    assert isinstance(change, RestartSide)
    assert (is_valid(found), change.side) == (True, Side.TIER)
    idle, first, *emptied, again = found.steps[-3:] if apart else found.steps[-4:]
    assert isinstance(idle, Idle)
    assert (first, emptied) == (again, [] if apart else [Reset()])


@given(late_hand_overs(limits()))
@settings(max_examples=40, deadline=None)
def test_what_is_handed_over_late_is_sent_again(found: Workload) -> None:
    """The prompt is sent in time, so that what the decoder kept can hit."""
    late = [str(one.prompt) for one in requests_of(found) if one.hand_over_ms]
    again = [str(r.prompt) for _, step, r in found.requests() if step > 0]
    assert is_valid(found)
    assert late == again


def test_others_take_the_blocks_before_a_late_hand_over() -> None:
    """They have as many tokens as the pool holds, twice."""
    few = msgspec.structs.replace(limits(), pool=512, longest=512)
    found = find(late_hand_overs(few), lambda w: requests_of(w)[0].hand_over_ms == LATE_MS)
    others = [one for one in requests_of(found) if one.offset_ms]
    assert all(one.offset_ms < LATE_MS for one in others)
    assert sum(s.length for one in others for s in one.prompt.segments) > 512


class Busy(ScriptedEngine):
    """An engine with a request that ends after the first sample and is then counted."""

    samples = 0

    def metrics(self) -> Metrics:
        """Return gauges and counters."""
        self.samples += 1
        now, hit = super().metrics(), self.hit
        if self.samples == 1:
            return msgspec.structs.replace(now, running=1.0)
        return msgspec.structs.replace(now, hit_tokens=hit + 9)


@pytest.mark.parametrize(("idle_first", "counted"), [(True, 0), (False, 9)])
def test_a_run_begins_when_earlier_requests_have_ended(tmp_path: Path, *, idle_first: bool, counted: int) -> None:
    """If their clients had disconnected, what they add to a counter does not belong to this run."""
    run = WorkloadRun(
        Busy(), Workload((burst(ask()),)), "n", contents(tmp_path), tmp_path, settle_seconds=0.0, idle_first=idle_first
    )
    assert run.history().steps[-1].after.hit_tokens == counted
