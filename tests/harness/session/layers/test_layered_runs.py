"""Several layers run at once, each in its own process, into one report."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.one_after_another import outcomes
from support.paths import COUNTED, PLUGIN_PATH
from support.suite_runs import run_pytest

from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_HARNESS, EXIT_OK, EXIT_USAGE
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict

PLUGINS = ("-p", "support.layered_engine", "-p", "no:cacheprovider")


def words(folder: Path, *arguments: str) -> list[str]:
    """Return pytest's arguments of a run on the engine `layered`."""
    given = ["suites", *PLUGINS, "--engine", "layered", "--model", "none", *COUNTED, "--diagnose", "none"]
    return [*given, "--report-dir", str(folder / "out"), *arguments]


def environment(moment: str = "") -> dict[str, str]:
    """Return the environment of the run."""
    return {**os.environ, "COLDPROOF_LAYERED": moment, "PYTHONPATH": PLUGIN_PATH}


def run(folder: Path, *arguments: str, moment: str = "") -> subprocess.CompletedProcess[str]:
    """Run the suites on the engine `layered`."""
    return run_pytest(words(folder, *arguments), {"COLDPROOF_LAYERED": moment})


def results(folder: Path) -> Results:
    """Return the results of the run."""
    return read_results(folder / "out" / "results.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return a run of two layers and two requirements, of which one layer tests only one."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, "--layers", "exact,server", "--requirements", "REUSE-1,CHAT-2")


def test_each_requirement_has_a_verdict_for_each_layer(whole: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Examples of both layers count for the requirement."""
    folder, done = whole
    assert done.returncode == EXIT_OK, done.stdout
    found = {one.id: one for one in results(folder).requirements}
    assert {name: [layer.layer for layer in one.layers] for name, one in found.items()} == {
        "CHAT-2": ["server"],
        "REUSE-1": ["exact", "server"],
    }
    reuse = found["REUSE-1"]
    assert [layer.verdict for layer in reuse.layers] == [Verdict.CONFORMS, Verdict.CONFORMS]
    assert reuse.examples == sum(layer.examples for layer in reuse.layers) >= 30
    assert [cell.label for cell in reuse.cells] == ["exact: layered-core", "server: layered"]


def test_the_engine_of_the_last_layer_is_that_of_the_run(whole: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The server is the engine that is qualified; the other layers are listed."""
    found = results(whole[0])
    assert [one.layer for one in found.layers] == ["exact", "server"]
    assert found.engine is not None
    assert found.engine == found.layers[1].engine
    assert all(one.requests and one.calibration for one in found.layers)
    page = (whole[0] / "out" / "index.html").read_text()
    assert "Requirements by layer" in page
    assert 'id="layers"' in page


def test_the_log_has_a_line_about_all_layers(whole: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The report folder has the whole output of each. pytest writes nothing, and the path of the report comes last."""
    folder, done = whole
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("exact 1 of 1 done") and " | server 3 of 3 done" in line]
    assert "no tests ran" not in done.stdout
    assert "test session starts" not in done.stdout
    assert lines[-1] == f"report: {folder / 'out' / 'index.html'}"
    assert all((folder / "out" / f"layer-{name}.log").read_text() for name in ("exact", "server"))


def test_a_violation_in_one_layer_is_the_requirements(tmp_path: Path) -> None:
    """The case names its layer and how it is replayed."""
    done = run(tmp_path, "--layers", "exact,server", "--requirements", "REUSE-1", moment="bug")
    assert done.returncode == EXIT_FAILED, done.stdout
    assert "exact: REUSE-1 VIOLATED" in done.stdout
    found = results(tmp_path)
    assert [layer.verdict for layer in found.requirements[0].layers] == [Verdict.VIOLATED, Verdict.CONFORMS]
    assert found.requirements[0].verdict is Verdict.VIOLATED
    (case,) = found.cases
    assert case.place == "exact: layered-core"
    assert case.replay.endswith("--layers exact --model none")


@pytest.mark.nightly
def test_a_second_violation_of_one_cause_is_confirmed_and_gets_no_controls(tmp_path: Path) -> None:
    """Only the first violation has controls, so that a faulty engine does not take more time than a correct one."""
    names = ("--layers", "exact", "--requirements", "REUSE-1,REUSE-2", "--diagnose", "new")
    done = run(tmp_path, *names, moment="bug")
    assert done.returncode == EXIT_FAILED, done.stdout
    first, second = results(tmp_path).cases
    assert (first.requirement, second.requirement) == ("REUSE-1", "REUSE-2")
    assert first.signature == second.signature
    assert first.diagnosis is not None
    assert second.diagnosis is None
    assert second.reproduction.fresh_failed == second.reproduction.fresh_tries


KNOWN = """
[[issue]]
requirement = "REUSE-1"
signature = "accounting*"
versions = ">=0"
expires = 2099-01-01
reason = "it counts too much"
link = "none"
"""


@pytest.mark.nightly
def test_a_known_issue_is_replayed_on_a_fresh_engine_in_the_exact_layer_only(tmp_path: Path) -> None:
    """Starting a server again would take longer than the rest of the sample."""
    (tmp_path / "known.toml").write_text(KNOWN)
    words = ("--layers", "exact,server", "--requirements", "REUSE-1", "--known-issues", str(tmp_path / "known.toml"))
    done = run(tmp_path, *words, moment="bugs")
    assert done.returncode == EXIT_OK, done.stdout
    cases = {case.layer: case.reproduction for case in results(tmp_path).cases}
    assert cases["exact"].fresh_tries == 3
    assert cases["server"].fresh_tries is None
    assert "another layer confirms it" in cases["server"].note


def test_a_layer_that_cannot_start_does_not_stop_the_others(tmp_path: Path) -> None:
    """The run fails and names the layer."""
    done = run(tmp_path, "--layers", "exact,server", "--requirements", "REUSE-1", moment="start")
    assert done.returncode == EXIT_HARNESS, done.stdout
    found = results(tmp_path)
    assert found.problem == "no port is free"
    assert [layer.layer for layer in found.requirements[0].layers if layer.verdict is Verdict.CONFORMS] == ["exact"]


def test_one_layer_runs_in_this_process(tmp_path: Path) -> None:
    """The run behaves as with --engine."""
    done = run(tmp_path, "--layers", "server", "--requirements", "CHAT-2")
    assert done.returncode == EXIT_OK, done.stdout
    found = results(tmp_path)
    assert found.layers == []
    assert [layer.layer for layer in found.requirements[0].layers] == ["server"]
    assert [cell.label for cell in found.requirements[0].cells] == ["layered"]


NOT_TOGETHER = {
    ("--layers", "exat"): "unknown layer 'exat': choose one of exact, server",
    ("--layers", "exact,server", "--cells", "layered"): "--cells is for one layer",
    ("--layers", "exact,server", "-n", "2"): "-n is for one layer",
    ("--layers", "exact,server", "--worker", "fingerprint"): "--worker is for one layer",
    ("--layers", "exact,server", "--profile", "soak"): "--profile soak is for one layer",
    ("--layers", "exact,server", "--requirements", "REUSE-77"): "unknown requirement 'REUSE-77'",
}


def test_conflicting_options_are_refused_in_one_line(tmp_path: Path) -> None:
    """The exit code is 4."""
    came = outcomes([words(tmp_path, *arguments) for arguments in NOT_TOGETHER], environment())
    for (code, said), expected in zip(came, NOT_TOGETHER.values(), strict=True):
        assert code == EXIT_USAGE, said
        assert expected in said
        assert "Traceback" not in said
