"""A side that is killed: what a run records of it, what is judged of its requests, and what counts as evidence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import find, given, settings
from support.drawn_workloads import asked, limits
from support.histories import ask, burst, contents, history, outcome, play

from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.sides import Side
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import SideRestart
from coldproof.harness.judgement.checkers.cached_tokens import check_accounting
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.evidence.collect import evidence
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine
from coldproof.harness.workload.generators.side_failures import LATE_MS, failing_sides, late_hand_overs
from coldproof.harness.workload.steps import Burst, RestartSide, Workload, all_changes
from coldproof.harness.workload.validity import is_valid

PROMPT = range(100, 140)


class Pair(ScriptedEngine):
    """Loses its cache and its counters with the prefiller."""

    def restart_side(self, side: Side) -> None:
        """As asked."""
        if side is Side.PREFILL:
            self.reset_cache()
            self.hit = self.queried = 0


def test_the_cache_ends_with_the_prefiller_and_counters_go_on(tmp_path: Path) -> None:
    """A later request must hit nothing of before; nothing is counted backwards."""
    made = play(Pair(), tmp_path, burst(ask()), burst(ask()), RestartSide(Side.PREFILL), burst(ask()), burst(ask()))
    assert [one.cached_tokens for one in made.outcomes] == [0, 40, 0, 40]
    (restart,), (reset,) = made.side_restarts, made.resets
    assert (restart.side, reset.success) == (Side.PREFILL, True)
    assert made.outcomes[1].finished <= restart.began <= restart.ended <= made.outcomes[2].sent
    assert [record.after.hit_tokens for record in made.steps] == [0, 40, 40, 40, 80]


def test_the_prefillers_cache_outlives_the_decoder(tmp_path: Path) -> None:
    """So its hits are still owed."""
    made = play(Pair(), tmp_path, burst(ask()), RestartSide(Side.DECODE), burst(ask()))
    assert made.outcomes[1].cached_tokens == 40
    assert made.resets == ()


def test_an_engine_without_sides_refuses(tmp_path: Path) -> None:
    """The step fails with the reason."""
    made = play(ScriptedEngine(), tmp_path, burst(ask()), RestartSide(Side.DECODE))
    assert "501" in (made.steps[1].error or "")


def test_a_side_that_does_not_start_again_is_an_error(tmp_path: Path) -> None:
    """And nothing more is run on a pair that is gone."""

    class Gone(Pair):
        def restart_side(self, side: Side) -> None:
            raise EngineDied(f"{side} is gone")

    made = play(Gone(), tmp_path, RestartSide(Side.PREFILL), burst(ask()))
    assert (made.engine_lost, made.outcomes, made.side_restarts) == ("prefill is gone", (), ())


@pytest.mark.parametrize(
    ("began", "ended", "excused"), [(0.2, 0.3, True), (0.5, 3.0, True), (0.6, 3.0, False), (-2.0, -1.0, False)]
)
def test_an_error_is_right_only_while_a_side_is_down(began: float, ended: float, *, excused: bool) -> None:
    """Before and after it, every request is answered. An answer is judged at any time."""
    lost = msgspec.structs.replace(outcome(0, PROMPT, answer=()), error="a side does not answer")
    made = history(lost, side_restarts=(SideRestart(began, ended, Side.DECODE),))
    assert (check_liveness(made) == []) is excused


def test_a_killed_sides_counters_are_not_compared() -> None:
    """It may have counted requests that got an error."""
    wrong = history(outcome(0, PROMPT, cached_tokens=5), outcome(1, PROMPT, cached_tokens=5))
    counted = msgspec.structs.replace(wrong, steps=wrong.steps[:1] * 2)
    assert check_accounting(counted, exclusive=True)
    restarted = msgspec.structs.replace(counted, side_restarts=(SideRestart(0.6, 0.7, Side.PREFILL),))
    assert check_accounting(restarted, exclusive=True) == []


@pytest.mark.parametrize(("prompt", "known"), [(PROMPT, 1), (range(100, 105), 0), (range(200, 240), 0)])
def test_evidence_is_an_answer_to_a_prompt_of_before(prompt: range, known: int) -> None:
    """Of which at least a block was computed."""
    made = history(outcome(0, PROMPT), outcome(1, prompt), side_restarts=(SideRestart(0.6, 0.8, Side.DECODE),))
    found = evidence(made, {})
    assert (found[Evidence.SIDE_RESTARTS], found[Evidence.AFTER_SIDE_RESTART]) == (1, known)


@pytest.mark.parametrize(("hand_over_ms", "late"), [(None, 0), (400, 1), (500, 1), (501, 0)])
def test_a_hand_over_is_late_if_the_answer_took_as_long(hand_over_ms: int | None, late: int) -> None:
    """A router that does not know the header delays nothing: then nothing late was tested. The answer took 0.5 s."""
    request = ask() if hand_over_ms is None else msgspec.structs.replace(ask(), hand_over_ms=hand_over_ms)
    made = history(outcome(0, PROMPT), workload=Workload((burst(request),)))
    assert evidence(made, {})[Evidence.LATE] == late


@given(failing_sides(limits()))
@settings(max_examples=40, deadline=None)
def test_prompts_of_before_come_again_after_a_side_has_ended(found: Workload) -> None:
    """At least one of them on its own, after the one change."""
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


@given(late_hand_overs(limits()))
@settings(max_examples=40, deadline=None)
def test_what_is_handed_over_late_is_sent_again(found: Workload) -> None:
    """In time, so that what the decoder kept shows."""
    late = [str(one.prompt) for one in asked(found) if one.hand_over_ms]
    again = [str(r.prompt) for _, step, r in found.requests() if step > 0]
    assert is_valid(found)
    assert late == again


def test_others_take_the_blocks_before_a_late_hand_over() -> None:
    """As many tokens as the pool holds, twice."""
    few = msgspec.structs.replace(limits(), pool=512, longest=512)
    found = find(late_hand_overs(few), lambda w: asked(w)[0].hand_over_ms == LATE_MS)
    others = [one for one in asked(found) if one.offset_ms]
    assert all(one.offset_ms < LATE_MS for one in others)
    assert sum(s.length for one in others for s in one.prompt.segments) > 512


class Busy(ScriptedEngine):
    """Has a request that ends after the first look, and is then counted."""

    looks = 0

    def metrics(self) -> Metrics:
        """Its gauges and counters."""
        self.looks += 1
        now, hit = super().metrics(), self.hit
        if self.looks == 1:
            return msgspec.structs.replace(now, running=1.0)
        return msgspec.structs.replace(now, hit_tokens=hit + 9)


@pytest.mark.parametrize(("idle_first", "counted"), [(True, 0), (False, 9)])
def test_a_run_begins_when_earlier_requests_have_ended(tmp_path: Path, *, idle_first: bool, counted: int) -> None:
    """Where their clients had left: what they add to a counter is none of this run's."""
    run = WorkloadRun(
        Busy(), Workload((burst(ask()),)), "n", contents(tmp_path), tmp_path, settle_seconds=0.0, idle_first=idle_first
    )
    assert run.history().steps[-1].after.hit_tokens == counted
