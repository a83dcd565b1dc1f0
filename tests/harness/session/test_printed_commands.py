"""Commands that a run prints are run as they are printed, from the folder in which they were printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from support.fake_server import ServerBehaviour, serving
from support.suite_runs import run_coldproof

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results, read_results
from coldproof.reports.assemble.assemble import read_events

DRAWN = ("--requirements", "REUSE-1", "--budget", "3s", "--hypothesis-seed", "7", "--diagnose", "none")
LYING = ("-p", "support.lying_engine")


def violated(folder: Path, *words: str, **environment: str) -> tuple[Results, Case]:
    """Run the suites in a folder, and return the results with their only case, whose replay was printed."""
    ended = run_coldproof([*DRAWN, *words], environment, folder=folder)
    results = read_results(folder / "coldproof-report" / "results.json")
    assert results.cases, ended.stdout
    assert results.cases[0].replay in ended.stdout
    return results, results.cases[0]


def replayed(folder: Path, case: Case, *plugin: str, **environment: str) -> Results:
    """Run the command that replays a case, as it is printed, and return the results of the replay."""
    program, command, file, *options = shlex.split(case.replay)
    assert (program, command) == ("coldproof", "replay")
    ended = run_coldproof([*plugin, f"--replay={file}", *options], environment, folder=folder)
    report = (folder / file).with_name(f"{case.id}-replay")
    assert (report / "results.json").is_file(), ended.stdout
    return read_results(report / "results.json")


def test_a_case_of_an_attached_server_is_replayed_there_by_the_calibration_of_its_run(tmp_path: Path) -> None:
    """It fails again while the server is wrong, and nothing is measured again."""
    with serving(ServerBehaviour(corrupt="tokens")) as server:
        results, case = violated(tmp_path, "--engine-url", server.url)
        again = replayed(tmp_path, case)
    assert [one.verdict.value for one in again.requirements] == ["VIOLATED"]
    assert again.exit_code == 1
    assert again.calibration is not None
    assert results.calibration is not None
    assert again.calibration.cold == results.calibration.cold
    report = tmp_path / "coldproof-report" / "cases" / f"{case.id}-replay"
    phases = [event["words"] for event in read_events(report / "events.ndjson") if event["event"] == "phase"]
    assert [words for words in phases if "cold answers" in words] == []


@pytest.mark.parametrize("lie", ["EVERY_HIT", "NONE"])
def test_a_case_of_an_engine_in_this_process_is_replayed(tmp_path: Path, lie: str) -> None:
    """It fails again while the engine is wrong, and passes once it is right."""
    _, case = violated(tmp_path, *LYING, "--engine", "lying", "--cells", "lying", COLDPROOF_LIE="EVERY_HIT")
    assert replayed(tmp_path, case, *LYING, COLDPROOF_LIE=lie).exit_code == (1 if lie == "EVERY_HIT" else 0)
