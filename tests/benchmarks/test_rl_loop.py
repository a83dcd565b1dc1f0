"""The recorded calls of an RL loop become a workload, which is judged on a scripted engine. TRL is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.modules import script
from support.paths import ROOT

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.harness.features.weights.evidence import Weights
from coldproof.harness.judgement.judge import Judgement
from coldproof.harness.session.selftest.scripted_engine import ClosedFormOracle, ScriptedEngine
from coldproof.harness.session.selftest.selftest import write_versions
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Burst,
    Meanwhile,
    Pause,
    Prompt,
    Reset,
    Resume,
    Segment,
    UpdateWeights,
    Workload,
)
from coldproof.harness.workload.validity import is_valid

FOLDER = ROOT / "benchmarks" / "rl_loop"
RECORDED = sorted(FOLDER.glob("*.json"))
GRPO = next(file for file in RECORDED if "grpo" in file.name)


LOOP = script("benchmarks/rl_loop/judge_calls.py")
STEM = tuple(range(40, 60))


def call(path: str, began: float, ended: float | None = None, **more: Any) -> Any:
    """Return one recorded call."""
    return LOOP.Call(path=path, began=began, ended=began if ended is None else ended, **more)


def generation(began: float, ended: float, *prompts: tuple[int, ...], answers: int = 1) -> Any:
    """Return one recorded generation."""
    return call(LOOP.GENERATE, began, ended, prompts=prompts, answers=answers, max_tokens=8)


def judged(calls: list[Any], folder: Path) -> Judgement:
    """Return the judgement of calls on a scripted engine, whose cache ignores weights."""
    versions = write_versions(folder)
    workload = LOOP.workload_of(calls, ["A", START_WEIGHTS])
    found: Judgement = LOOP.judged(
        CheckedEngine(ScriptedEngine()), ClosedFormOracle(), workload, versions, folder / "r"
    )
    return found


def test_calls_become_steps_in_their_order() -> None:
    """Prompts share what they shared before, an answer is a request, and calls that change nothing are left out."""
    calls = [
        call("/health", 0),
        generation(1, 2, (*STEM, 1), (*STEM, 2, 2), answers=2),
        call(LOOP.UPDATE, 3),
        call(LOOP.RESET, 4),
        generation(5, 6, (*STEM, 1)),
        call(LOOP.UPDATE, 7),
    ]
    first, update, reset, last, other = LOOP.workload_of(calls, ["A", "B"]).steps
    shared = Segment("shared", 20)
    one, two = Prompt((shared, Segment("prompt 0", 1))), Prompt((shared, Segment("prompt 1", 2)))
    assert isinstance(first, Burst)
    assert [request.prompt for request in first.requests] == [one, one, two, two]
    assert {request.max_tokens for request in first.requests} == {8}
    assert (update, reset, other) == (UpdateWeights(version="A"), Reset(), UpdateWeights(version="B"))
    assert isinstance(last, Burst)
    assert [request.prompt for request in last.requests] == [one]


def test_calls_during_a_generation_are_made_during_the_burst() -> None:
    """They have the modes of the calls, or vLLM's defaults. A request that came meanwhile belongs to the burst."""
    during = [call(LOOP.PAUSE, 2, query="mode=keep"), call(LOOP.UPDATE, 3), call(LOOP.RESUME, 4)]
    calls = [generation(1, 9, STEM), *during, generation(5, 6, STEM), call(LOOP.PAUSE, 10), call(LOOP.RESUME, 11)]
    burst, pause, resume = LOOP.workload_of(calls, ["A"]).steps
    assert isinstance(burst, Burst)
    assert len(burst.requests) == 2
    kept = Pause(mode=PauseMode.KEEP, clear=True)
    assert burst.meanwhile == Meanwhile(change=kept, after_tokens=1, then=(UpdateWeights(version="A"), Resume()))
    assert (pause, resume) == (Pause(mode=PauseMode.ABORT, clear=True), Resume())


def test_each_kind_of_call_is_left_out_once() -> None:
    """There is also a pause without clearing."""
    calls = [call(LOOP.PAUSE, 1, query="mode=keep"), call(LOOP.UPDATE, 2), call(LOOP.RESUME, 3), call(LOOP.RESET, 4)]
    found = {name: [(c.path, c.query) for c in kept] for name, kept in LOOP.variants(calls).items()}
    update, reset, resume = (LOOP.UPDATE, ""), (LOOP.RESET, ""), (LOOP.RESUME, "")
    assert found == {
        "as recorded": [(LOOP.PAUSE, "mode=keep"), update, resume, reset],
        "without /reset_prefix_cache": [(LOOP.PAUSE, "mode=keep"), update, resume],
        "/pause with clear_cache=false": [(LOOP.PAUSE, "mode=keep&clear_cache=false"), update, resume, reset],
        "without /pause and /resume": [update, reset],
    }
    assert list(LOOP.variants([call(LOOP.UPDATE, 1)])) == ["as recorded"]


def test_another_client_has_a_request_in_flight_over_the_changes() -> None:
    """A reset then fails, which the loop would have to detect. Without a reset there is no such workload."""
    calls = [generation(1, 2, STEM), call(LOOP.UPDATE, 3), call(LOOP.RESET, 4), generation(5, 6, STEM)]
    found = LOOP.workloads(calls, ["A"])
    recorded, *_, busy = found.values()
    first, flight, last = busy.steps
    assert (first, last) == (recorded.steps[0], recorded.steps[-1])
    assert flight.meanwhile.changes == (UpdateWeights(version="A"), Reset())
    assert is_valid(busy)
    assert len(LOOP.workloads([calls[0], calls[1], calls[3]], ["A"])) == 1


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.name)
def test_a_recorded_loop_is_a_valid_workload(file: Path) -> None:
    """It has several updates, and requests after them."""
    workloads: dict[str, Workload] = LOOP.workloads(LOOP.read_calls(file), ["A", "B"])
    for workload in workloads.values():
        assert is_valid(workload)
        changes = [
            change
            for step in workload.steps
            for change in ((step.meanwhile.changes if step.meanwhile else ()) if isinstance(step, Burst) else (step,))
        ]
        assert sum(isinstance(change, UpdateWeights) for change in changes) == 3
        assert sum(isinstance(step, Burst) for step in workload.steps) >= 3


def test_the_reset_is_what_makes_the_recorded_loop_safe(tmp_path: Path) -> None:
    """With the reset no old KV is hit. Without it the same calls are answered with old KV."""
    recorded, without = LOOP.variants(LOOP.read_calls(GRPO)).values()
    right, wrong = judged(recorded, tmp_path / "a"), judged(without, tmp_path / "b")
    assert right.evidence[Weights.AFTER_UPDATE] > 0
    assert right.findings == ()
    assert wrong.findings
    assert LOOP.summary(right).endswith("none wrong")
    assert "wrong. Request" in LOOP.summary(wrong)


def test_calls_that_the_server_did_not_get_are_not_judged(tmp_path: Path) -> None:
    """The bridge still records them."""
    file = tmp_path / "calls.json"
    file.write_text('[{"path": "/reset_prefix_cache", "began": 1.0, "ended": 1.0, "left_out": true}]')
    assert LOOP.read_calls(file) == []
