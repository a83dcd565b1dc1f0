"""The plan for vLLM with CUDA fits Coldproof: its requirements, cells, faults and flags exist."""

from __future__ import annotations

import importlib
import sys
import tomllib
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.paths import ROOT

from coldproof.adapters.vllm.cells.every import CELLS
from coldproof.adapters.vllm.faults.catalogue import FAULTS

sys.path.insert(0, str(ROOT / "ci" / "gpu_kit"))
kit_plan: Any = importlib.import_module("kit_plan")
PLAN = kit_plan.read_plan(ROOT / "ci" / "plans" / "vllm.toml")
RUNS = [step for step in PLAN.steps if "coldproof" in step.run]


def after(step: Any, option: str) -> list[str]:
    """Return the values of an option of a run."""
    words = list(step.run)
    return words[words.index(option) + 1].split(",") if option in words else []


@pytest.mark.parametrize("step", RUNS, ids=lambda step: step.name)
def test_a_run_starts_cells_in_which_a_model_runs_on_a_gpu(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coldproof.adapters.vllm.cells.cell.is_cpu_build", lambda: False)
    known = {cell.name: cell for cell in CELLS}
    (engine,) = after(step, "--engine")
    assert [known[name].obstacle(engine, "model") for name in after(step, "--cells")] == [""] * len(
        after(step, "--cells")
    )


def test_each_fault_is_tested_by_a_requirement_that_must_detect_it() -> None:
    injected = {after(step, "--fault")[0]: after(step, "--requirements") for step in RUNS if "--fault" in step.run}
    assert len(injected) == 10
    assert {name for name, ids in injected.items() if set(ids) <= set(FAULTS[name].about)} == set(injected)
    assert not [name for name in injected if FAULTS[name].equivalent], "nobody can detect these"
    assert {step.name for step in RUNS if "--fault" in step.run} == {f"fault-{name}" for name in injected}


def test_only_what_must_be_violated_has_to_be() -> None:
    """In other steps both exit codes are results."""
    must = {step.name for step in RUNS if step.expect == (1,)}
    assert must == {"lora-server-bfloat16", *(step.name for step in RUNS if "--fault" in step.run)}


def test_no_fault_is_tested_by_a_requirement_that_the_release_violates() -> None:
    """vLLM 0.26.0 violates LORA-2 and SALT-1 without a fault, so exit code 1 would prove nothing there. Its other
    violations are waived.
    """
    known = tomllib.loads((ROOT / "adapters" / "vllm" / "past_issues.toml").read_text())["issue"]
    of_release = {one["requirement"] for one in known if Version("0.26.0") in SpecifierSet(one["versions"])}
    in_every_cell = {one["requirement"] for one in known if one.get("cell", "*") == "*"} & of_release
    assert {"LORA-2", "SALT-1"} <= in_every_cell
    with_faults = [step for step in RUNS if "--fault" in step.run]
    looked_for = {name for step in with_faults for name in after(step, "--requirements")}
    assert not looked_for & (in_every_cell - {"PRESS-1"})
    assert all(after(step, "--known-issues")[0].endswith("vllm/past_issues.toml") for step in with_faults)


def test_the_steps_of_a_lane_fit_the_budget_and_the_lanes_fit_a_machine() -> None:
    """The machine has 16 cores. With eight lanes beside another plan, 10 of 19 steps ran out of time."""
    lanes = {step.lane: 0.0 for step in PLAN.steps if step.lane != "probe"}
    for step in PLAN.steps:
        if step.lane in lanes:
            lanes[step.lane] += step.seconds
    assert len(lanes) <= 7
    assert max(lanes.values()) <= PLAN.budget
