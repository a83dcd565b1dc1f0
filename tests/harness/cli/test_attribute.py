"""`coldproof attribute`: a case belongs to the cause whose repair alone makes it vanish."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import pytest

from coldproof.adapters.server.probes import CACHE_CONFIG
from coldproof.harness.case.finding_records import FOLDER
from coldproof.harness.case.load import load_case
from coldproof.harness.cli.main import main
from coldproof.harness.schema.case import TRACE, Case
from coldproof.harness.schema.exit_codes import EXIT_USAGE
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import encode
from coldproof.harness.session.causes import local_engine
from coldproof.harness.session.causes.replay_job import ReplayEnd
from coldproof.harness.session.causes.saved_replays import SavedReplays
from coldproof.harness.workload.steps import Workload

FAILS, PASSES, NOT_RUN = ReplayResult.FAILS, ReplayResult.PASSES, ReplayResult.NOT_RUN
CONTENTS = FOLDER / "vllm" / "adapter-key-lacks-the-contents" / "case.json"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the release of vLLM be installed that the repairs are for."""
    monkeypatch.setattr(local_engine, "installed_release", lambda _spec: "0.32.0")


def replays(result: ReplayResult) -> Callable[..., ReplayEnd]:
    """Return replays that nothing runs: they end so with repairs, and without them the case fails."""

    def run(_self: SavedReplays, _case: Case, _workload: Workload, _local: object, names: Collection[str]) -> ReplayEnd:
        return ReplayEnd(result if names else FAILS)

    return run


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

    monkeypatch.setattr(SavedReplays, "run", replays(result))
    assert main(["attribute", str(CONTENTS)]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert said in line


def test_the_traces_beside_cases_are_left_out_and_none_alone_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cases/*.json` names both. A command that tried nothing would end with 0."""
    monkeypatch.setattr(SavedReplays, "run", replays(PASSES))
    trace = tmp_path / f"LORA-3-1{TRACE}"
    trace.write_text("{}")
    assert main(["attribute", str(CONTENTS), str(trace)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["attribute", str(trace)]) == EXIT_USAGE
    assert "is the trace of a case; give LORA-3-1.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.32.0+cu130", "(by replay on a local engine of the same release)"),
        ("0.33.0", "by signature alone: no engine"),
    ],
)
def test_a_case_of_an_attached_server_is_tried_on_the_same_release(
    version: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another release, only its signature is left."""
    case, _ = load_case(CONTENTS)
    config = {**case.engine_config, f"{CACHE_CONFIG}block_size": "32"}
    attached = msgspec.structs.replace(case, engine="endpoint", engine_version=version, engine_config=config)
    path = tmp_path / "case.json"
    path.write_bytes(encode(attached))

    monkeypatch.setattr(SavedReplays, "run", replays(PASSES))
    assert main(["attribute", str(path)]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.engine
@pytest.mark.nightly
def test_a_case_of_vllm_belongs_to_its_finding() -> None:
    """The replays run on the real engine, with the worker of the case."""
    command = [sys.executable, "-m", "coldproof", "attribute", str(CONTENTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("LORA-3-c0bf510a: vllm/adapter-key-lacks-the-contents: ")
