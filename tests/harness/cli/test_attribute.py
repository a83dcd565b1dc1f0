"""`coldproof attribute`: a case belongs to the cause whose repair alone makes it vanish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coldproof.harness.case.finding_records import FOLDER
from coldproof.harness.case.repairs import NONE
from coldproof.harness.cli import attribute
from coldproof.harness.cli.main import main
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import ReplayResult

FAILS, PASSES, NOT_RUN = ReplayResult.FAILS, ReplayResult.PASSES, ReplayResult.NOT_RUN
CONTENTS = FOLDER / "vllm" / "adapter-key-lacks-the-contents" / "case.json"


@pytest.mark.parametrize(
    ("result", "code", "said"),
    [
        (PASSES, 0, ": vllm/adapter-key-lacks-the-contents: vanishes with the repair of "),
        (
            FAILS,
            1,
            ": no known cause: it has the signature of vllm/adapter-key-lacks-the-contents, but it fails",
        ),
        (NOT_RUN, 3, ": not run: "),
    ],
)
def test_each_case_has_a_line_and_the_exit_code_sums_them_up(
    result: ReplayResult, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0: each belongs to a known cause; 1: one does not; 3: one came to no verdict."""

    def replayed(_case: Case, _path: Path, _folder: Path, repairs: str) -> ReplayResult:
        return FAILS if repairs == NONE else result

    monkeypatch.setattr(attribute, "replayed", replayed)
    assert main(["attribute", str(CONTENTS)]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert said in line


@pytest.mark.engine
@pytest.mark.nightly
def test_a_case_of_vllm_belongs_to_its_finding(tmp_path: Path) -> None:
    """The replays run on the real engine, with the worker of the case."""
    command = [sys.executable, "-m", "coldproof", "attribute", str(CONTENTS), "--report-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("LORA-3-c0bf510a: vllm/adapter-key-lacks-the-contents: ")
