"""Each fault of the catalogue fits the installed vLLM, and reaches an engine by `--fault`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapters.base import EngineStartError
from harness.faults import plugin
from harness.faults.catalogue import FAULTS
from harness.faults.patching import acted, actions
from harness.options import Options
from harness.session import Session
from reports.schema import Verdict, read_results
from tests.planting import plant

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fits_what_it_patches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it replaces exists in this vLLM; an engine that is not broken after all would be a survivor's excuse."""
    set_attributes: list[str] = []
    monkeypatch.setattr(
        monkeypatch, "setattr", lambda owner, name, value: set_attributes.append(f"{getattr(owner, name)}")
    )
    plant(name, monkeypatch)
    assert set_attributes


def test_engines_started_inside_find_the_fault(tmp_path: Path) -> None:
    """By vLLM's own way of looking for plugins; outside, nothing of it is left."""
    before = dict(os.environ), list(sys.path)
    look = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='vllm.general_plugins')])"
    with plugin.chosen("a-reset-only-says-so", tmp_path / "fault"):
        said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
        assert "harness.faults.plugin:plant_chosen" in said
        assert os.environ[plugin.CHOSEN] == "a-reset-only-says-so"
    assert (dict(os.environ), list(sys.path)) == before


def test_the_first_action_leaves_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is enough, however often the fault acts."""
    monkeypatch.setitem(actions, "acted", 0)
    with plugin.chosen("a-reset-only-says-so", tmp_path / "fault"):
        assert plugin.marks(tmp_path / "fault", "acted") == 0
        acted()
        acted()
        assert plugin.marks(tmp_path / "fault", "acted") == 1


def test_a_run_with_a_fault_finds_it_and_says_that_it_was_injected(tmp_path: Path) -> None:
    """VIOLATED by what is about it, confirmed on a fresh engine that has it too; nobody takes that for the engine's."""
    command = [sys.executable, "-m", "pytest", "suites", "--worker", "fingerprint", "--cells", "default", "-q"]
    command += ["--fault", "hashes-forget-who-asks", "--requirements", "SALT-1", "--budget", "20s", "-p", "no:logging"]
    run = subprocess.run(
        [*command, "--report-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stdout
    results = read_results(tmp_path / "results.json")
    (salts,) = results.requirements
    assert salts.verdict is Verdict.VIOLATED
    assert results.fault is not None
    assert results.fault.acted
    assert "with the injected fault 'hashes-forget-who-asks'" in results.headline
    assert "ENGINE BROKEN ON PURPOSE" in (tmp_path / "index.html").read_text()


class Stoppable:
    """An engine that was just started."""

    def stop(self) -> None:
        """There is nothing to stop."""


@pytest.mark.parametrize(
    ("engine", "before", "refused"),
    [("vllm", 0, False), ("vllm", 1, True), ("vllm-inproc", 1, False)],
    ids=["planted as it started", "another engine's mark", "in the process that has it"],
)
def test_an_engine_without_its_fault_is_refused(tmp_path: Path, engine: str, before: int, refused: bool) -> None:
    """One server's mark vouches for no other."""
    (tmp_path / "planted-1").touch()
    options = Options(engine=engine, report_dir=tmp_path, fault="a-reset-only-says-so")
    session = SimpleNamespace(options=options, marks=tmp_path)
    with pytest.raises(EngineStartError, match="was not planted") if refused else contextlib.nullcontext():
        Session.check_fault(session, Stoppable(), before)  # type: ignore[arg-type]
