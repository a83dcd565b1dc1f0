"""`coldproof connector` starts the right run, refuses bad input, and finds the defect in a connector written by
hand.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path

import pytest
from support.paths import COUNTED, PLUGIN_PATH, ROOT
from support.suite_runs import run_coldproof

from coldproof.harness.cli import connector
from coldproof.harness.cli.main import main
from coldproof.harness.schema.results import read_results

HAND_WRITTEN = ROOT / "tests" / "support" / "hand_written_connector.py"  # it needs vLLM: it is not imported here


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments of the run that the command starts."""
    words: list[str] = []

    def run(given: list[str]) -> int:
        words.extend(given)
        return 0

    monkeypatch.setattr(connector, "run_pytest", run)
    return words


def test_the_class_is_the_second_tier_of_a_run_with_the_fingerprint_worker(started: list[str]) -> None:
    """The connector has its options and the flags of the user. The remaining arguments belong to the run."""
    words = ["json:Mine", "--config", '{"a b": "it\'s"}', "--engine-args=--seed 1", "-k", "salts"]
    assert main(["connector", *words]) == 0
    assert started[:6] == ["--engine", "vllm-inproc", "--worker", "fingerprint", "--cells", "connector"]
    flags = shlex.split(next(word for word in started if word.startswith("--engine-args=")).partition("=")[2])
    assert (flags[0], flags[2:]) == ("--kv-transfer-config", ["--seed", "1"])
    config = json.loads(flags[1])
    assert (config["kv_connector"], config["kv_connector_module_path"]) == ("Mine", "json")
    assert config["kv_connector_extra_config"] == {"a b": "it's"}
    assert started[-4:] == ["--budget", "2m", "-k", "salts"]


@pytest.mark.parametrize(("words", "tested"), [([], False), (["--load-failures", "fail"], True)])
def test_failed_loads_are_tested_if_the_user_chooses_it(started: list[str], words: list[str], tested: bool) -> None:
    """A connector whose loads never fail could not show the evidence."""
    main(["connector", "SimpleCPUOffloadConnector", *words])
    assert ("TIER-4" in started[started.index("--requirements") + 1].split(",")) is tested


@pytest.mark.parametrize(("words", "cells"), [([], "connector"), (["--events"], "connector,connector-events")])
def test_events_are_tested_if_the_user_chooses_it(started: list[str], words: list[str], cells: str) -> None:
    """A connector that publishes no events could not explain its hits."""
    main(["connector", "SimpleCPUOffloadConnector", *words])
    assert started[started.index("--cells") + 1] == cells
    assert ("EVENT-2" in started[started.index("--requirements") + 1].split(",")) is bool(words)


def test_the_users_budget_is_the_only_one(started: list[str]) -> None:
    """This holds for both forms of the option."""
    main(["connector", "json:Mine", "--budget=7s"])
    assert [word for word in started if "budget" in word] == ["--budget=7s"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such_module:Mine"], "there is no module 'no_such_module'"),
        (["no_such.module:Mine"], "there is no module 'no_such.module'"),
        (["json:Mine", "--config", "[1]"], "expected a JSON object"),
        (["json:Mine", "--config", "{"], "expected a JSON object"),
    ],
)
def test_bad_arguments_are_one_line(
    started: list[str], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """Nothing is started."""
    assert main(["connector", *words]) == 4
    line = capsys.readouterr().err
    assert line.startswith("coldproof connector: ")
    assert line.count("\n") == 1
    assert said in line
    assert started == []


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "code", "violated"),
    [
        pytest.param("HandWritten", 0, set(), marks=pytest.mark.nightly),
        ("OmitsOwner", 1, {"TIER-3"}),
    ],
)
def test_a_connector_that_forgets_salts_and_adapters_is_found(
    started: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, code: int, violated: set[str]
) -> None:
    """The case says which request wrote the block. The same connector without the defect conforms."""
    if importlib.util.find_spec("vllm") is None:  # this process need not import it
        pytest.skip("vLLM is not installed")
    (tmp_path / "mine.py").write_text(HAND_WRITTEN.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    words = [f"mine:{name}", "--requirements", "TIER-3", *COUNTED, "--diagnose", "none"]
    assert main(["connector", *words, "--profile", "wide", "--report-dir", "report"]) == 0
    ended = run_coldproof(started, {"PYTHONPATH": f"{PLUGIN_PATH}:{tmp_path}"}, folder=tmp_path)
    assert ended.returncode == code, ended.stdout[-3000:]
    results = read_results(tmp_path / "report" / "results.json")
    assert {r.id for r in results.requirements if r.verdict == "VIOLATED"} == violated
    assert all("stale state" in case.failure_class.value for case in results.cases)
