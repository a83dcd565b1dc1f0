"""Repairs reach an engine by `--repairs`: the cases of their findings are gone, and the report names them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.faults import Stoppable
from support.paths import ended
from support.suite_runs import run_command

from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.vllm import repairs
from coldproof.adapters.vllm.spec import with_fault
from coldproof.harness.case.finding_records import read_records
from coldproof.harness.case.repairs import read_repairs
from coldproof.harness.cli.finding_runs import command_of, obstacle
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import Results, read_results

pytestmark = pytest.mark.engine
REPAIRED = ("vllm/adapter-key-lacks-the-contents", "vllm/failed-load-heads-the-queue")
MENDED = (*REPAIRED, "vllm/failed-load-waits-for-itself")  # by the same repair
UNREPAIRED = "vllm/row-mask-is-not-in-the-key"


def replayed(folder: Path, *words: str) -> tuple[Results, str]:
    """Return the results and the output of a run that only replays these findings."""
    records = [read_records()[name] for name in (*MENDED, UNREPAIRED)]
    run = run_command([*command_of(records, folder), *words], folder=folder.parent)
    return read_results(folder / "results.json"), run.stdout


def test_a_case_is_gone_with_its_repair_and_the_others_are_still_there(tmp_path: Path) -> None:
    """The page says that the engine was repaired, and the results list the repairs."""
    results, said = replayed(tmp_path / "report", "--repairs", ",".join(REPAIRED))
    found = {one.finding: one.result for one in results.findings}
    assert {name: found[name] for name in MENDED} == dict.fromkeys(MENDED, ReplayResult.PASSES), said
    assert found[UNREPAIRED] is ReplayResult.FAILS
    assert [one.name for one in results.repairs] == list(REPAIRED)
    assert results.repairs[1].also == [MENDED[-1]]
    assert "with 2 repairs" in results.headline
    assert "ENGINE REPAIRED" in (tmp_path / "report" / "index.html").read_text()
    assert results.cases
    assert all(case.replay.endswith(f"--repairs {','.join(REPAIRED)}") for case in results.cases)


@pytest.mark.parametrize("planted", [True, False])
def test_an_engine_without_its_repairs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """Each of its processes leaves a marker when it has planted them."""
    file = read_repairs()[UNREPAIRED].path
    monkeypatch.setattr(repairs, "plant", lambda _files: None)
    engine = Stoppable()

    def start() -> Any:
        if planted:
            repairs.plant_chosen()
        return engine

    refusal = pytest.raises(EngineStartError, match="the repairs were not injected")
    with repairs.planted([file], tmp_path / "repairs"), contextlib.nullcontext() if planted else refusal:
        assert os.environ[repairs.FILES] == str(file)
        assert with_fault(start, shared=False) is engine
    assert repairs.FILES not in os.environ
    assert engine.stopped is not planted


def test_an_engine_without_chosen_repairs_is_as_it_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin does nothing then."""
    monkeypatch.delenv(repairs.FILES, raising=False)
    monkeypatch.setattr(repairs, "plant", lambda _files: pytest.fail("a repair was planted"))
    repairs.plant_chosen()


def findings(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return a run of `coldproof findings` that has ended."""
    command = [sys.executable, "-P", "-m", "coldproof", "findings", *words, "--report-dir", str(folder)]
    return ended(command)


@pytest.mark.nightly
def test_each_case_is_gone_with_its_own_repair_alone(tmp_path: Path) -> None:
    """The square has all cases in process, with and without a model. Those on a server take too long for it."""
    here = [one for one in read_records().values() if one.engine == "vllm" and not obstacle(one)]
    rows = [one.id for one in here if one.found.adapter == "vllm-inproc"]
    run = findings(*rows, "--matrix", "--together", folder=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(rows)} cases under " in run.stdout


@pytest.mark.nightly
def test_all_cases_with_a_repair_are_gone_with_all_repairs(tmp_path: Path) -> None:
    """This covers cases with a model and on servers, too. The others are still there."""
    run = findings("vllm", "--replay", "--repairs", "known", folder=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr


def test_kernels_are_replaced_before_a_repair_imports_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Behind what a repair of LMCache imports, vLLM's search for its kernels fails, and no engine starts."""
    done: list[str] = []
    monkeypatch.setattr(repairs, "replace_kernels", lambda: done.append("kernels"))
    monkeypatch.setattr(repairs, "plant", lambda paths: done.extend(path.name for path in paths))
    monkeypatch.setenv(repairs.FILES, "a.py")
    monkeypatch.setenv(repairs.MARKERS, str(tmp_path))
    repairs.plant_chosen()
    assert done == ["kernels", "a.py"]
