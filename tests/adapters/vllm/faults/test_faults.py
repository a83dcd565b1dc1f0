"""Each fault of the catalogue fits the installed vLLM, and reaches an engine by `--fault`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.faults import Stoppable, plant
from support.paths import COUNTED
from support.suite_runs import run_coldproof

from coldproof import IMPORT_ROOT
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.vllm.faults import plugin
from coldproof.adapters.vllm.faults.catalogue import FAULTS
from coldproof.adapters.vllm.faults.engine_parts import manager
from coldproof.adapters.vllm.faults.patching import MARKERS_VARIABLE, acted, actions
from coldproof.adapters.vllm.spec import with_fault
from coldproof.harness.schema.results import read_results
from coldproof.harness.schema.verdict import Verdict

pytestmark = pytest.mark.engine


def test_each_fault_fits_what_it_patches() -> None:
    """Everything that a fault replaces exists in this vLLM; otherwise a missed fault could be blamed on the
    injection.
    """
    wrong = {name: problem for name in FAULTS if (problem := misfit(name))}
    assert wrong == {}


def misfit(name: str) -> str:
    """Return why a fault cannot be planted in this vLLM, or nothing."""
    replaced = Replaced()
    try:
        plant(name, replaced)
    except Exception as problem:  # noqa: BLE001 - all faults that do not fit are listed
        return repr(problem)
    return "" if replaced.names else "replaces nothing"


class Replaced:
    """A patch that changes nothing and records the names that it would replace."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def setattr(self, owner: Any, name: str, _value: Any) -> None:
        """Record an attribute. Raises AttributeError for one that does not exist."""
        getattr(owner, name)
        self.names.append(name)


@pytest.mark.parametrize("name", ["hits-are-counted-twice", "each-attempt-is-counted"])
def test_a_fault_that_this_vllm_cannot_have_stops_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 0.26 lacks the method, and an engine that crashed at its first request by it counted as a detection."""
    monkeypatch.delattr(manager(), "record_prefix_cache_stats")
    with pytest.raises(AttributeError, match="record_prefix_cache_stats"):
        plant(name, monkeypatch)


def test_engines_started_inside_have_the_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM finds the fault by its own plugin mechanism, and nothing is left outside the context."""
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    before = dict(os.environ), list(sys.path)
    look = "from importlib.metadata import entry_points as e; print([p.value for p in e(group='vllm.general_plugins')])"
    with plugin.injected("a-reset-does-nothing", tmp_path / "fault"):
        said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
        assert "coldproof.adapters.vllm.faults.plugin:inject_chosen" in said
        assert os.environ[plugin.FAULT_VARIABLE] == "a-reset-does-nothing"
        folder, *theirs, ours = os.environ["PYTHONPATH"].split(os.pathsep)
        assert (folder, theirs, ours) == (str(tmp_path / "fault"), ["/theirs"], str(IMPORT_ROOT))
    assert (dict(os.environ), list(sys.path)) == before


def test_the_first_action_leaves_a_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One marker is enough, however often the fault acts."""
    monkeypatch.setitem(actions, "acted", 0)
    with plugin.injected("a-reset-does-nothing", tmp_path / "fault"):
        assert plugin.count_markers(tmp_path / "fault", "acted") == 0
        acted()
        acted()
        assert plugin.count_markers(tmp_path / "fault", "acted") == 1


def test_a_run_with_a_fault_detects_and_reports_it(tmp_path: Path) -> None:
    """The run is VIOLATED and confirmed on a fresh engine with the fault. The report says that the fault was
    injected.
    """
    words = ["--worker", "fingerprint", "--cells", "default", "-q", "--requirements", "SALT-1", *COUNTED]
    words += ["--fault", "hashes-lack-the-salt-and-the-adapter", "-p", "no:logging"]
    run = run_coldproof([*words, "--report-dir", str(tmp_path)])
    assert run.returncode == 1, run.stdout
    results = read_results(tmp_path / "results.json")
    (salts,) = results.requirements
    assert salts.verdict is Verdict.VIOLATED
    assert results.fault is not None
    assert results.fault.acted
    assert "with the injected fault 'hashes-lack-the-salt-and-the-adapter'" in results.headline
    assert "FAULT INJECTED" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize(
    ("shared", "before", "after", "refused"),
    [(False, 0, 1, False), (False, 1, 1, True), (True, 1, 1, False)],
    ids=["planted as it started", "another engine's mark", "in the process that has it"],
)
def test_an_engine_without_its_fault_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, shared: bool, before: int, after: int, refused: bool
) -> None:
    """A marker of one server does not count for another one."""
    monkeypatch.setenv(plugin.FAULT_VARIABLE, "a-reset-does-nothing")
    monkeypatch.setenv(MARKERS_VARIABLE, str(tmp_path))
    engine = Stoppable()

    def start() -> Any:
        for number in range(before, after):
            (tmp_path / f"planted-{number}").touch()
        return engine

    for number in range(before):
        (tmp_path / f"planted-{number}").touch()
    with pytest.raises(EngineStartError, match="was not injected") if refused else contextlib.nullcontext():
        assert with_fault(start, shared=shared) is engine
    assert engine.stopped is refused


def test_an_engine_of_a_run_without_a_fault_needs_no_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """No marker is required."""
    monkeypatch.delenv(plugin.FAULT_VARIABLE, raising=False)
    engine = Stoppable()
    start: Any = lambda: engine  # noqa: E731
    assert with_fault(start, shared=False) is engine
