"""`coldproof findings` lists the findings, judges replays, and proposes new findings."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support.nightly import with_samples
from support.paths import ROOT
from support.report_samples import results
from support.suite_runs import run_command

from coldproof.adapters.registry import ATTACHED, ENGINES
from coldproof.adapters.spec.repair import Repair, RepairError
from coldproof.harness.case.finding_records import FOLDER, RECORD, SCRIPT, read_finding, read_record, read_records
from coldproof.harness.case.load import load_case
from coldproof.harness.cli import finding_runs
from coldproof.harness.cli import findings as command
from coldproof.harness.cli.finding_runs import Outcome, command_of, obstacle, replays_of
from coldproof.harness.cli.main import main
from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, FindingReplay, FindingStatus, ReplayResult
from coldproof.harness.schema.results import EngineResult, InjectedFault, Results, encode, read_results

RECORDS = read_records()
FIXED = next(record for record in RECORDS.values() if record.status is FindingStatus.FIXED)
CURRENT = next(
    record for record in RECORDS.values() if record.status is not FindingStatus.FIXED and record.rate is None
)
SCRIPTED = "vllm/failed-load-stays-in-the-cache"
LUCKY = next(record for record in RECORDS.values() if record.rate is not None)


def test_the_list_names_every_finding_with_its_state(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a line, and the last line has their number."""
    assert main(["findings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(RECORDS) + 4
    (line,) = (line for line in lines if line.startswith(f"{FIXED.id} "))
    assert line.split() == [FIXED.id, *FIXED.severity.split(), "fixed", FIXED.requirement, *FIXED.releases.split()]
    assert lines[-3].startswith(f"{sum(one.is_root_cause for one in RECORDS.values())} root causes and ")
    assert lines[-2].startswith("By severity: ")
    assert lines[-1].startswith("By status: ")


def test_names_choose_engines_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """They may be combined, and an unknown one is refused."""
    assert main(["findings", "sglang", FIXED.id]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4 + sum(one.engine == "sglang" for one in RECORDS.values()) + 1
    assert main(["findings", "vllm/no-such-finding"]) == 4
    assert "unknown finding or engine 'vllm/no-such-finding'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("record", "result", "version", "expected"),
    [
        (CURRENT, ReplayResult.FAILS, CURRENT.last_release, True),
        (CURRENT, ReplayResult.PASSES, CURRENT.last_release, False),
        (CURRENT, ReplayResult.OTHERWISE, CURRENT.last_release, False),
        (LUCKY, ReplayResult.PASSES, LUCKY.last_release, True),
        (FIXED, ReplayResult.PASSES, FIXED.fixed_in, True),
        (FIXED, ReplayResult.FAILS, FIXED.fixed_in, False),
        (FIXED, ReplayResult.FAILS, FIXED.last_release, True),
        (FIXED, ReplayResult.PASSES, FIXED.last_release, False),
    ],
)
def test_a_replay_is_as_recorded_or_not(
    record: FindingRecord, result: ReplayResult, version: str, expected: bool
) -> None:
    """The release that was replayed decides this."""
    assert Outcome(record, result, version=version).as_recorded is expected


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([(CURRENT, ReplayResult.FAILS, False), (FIXED, ReplayResult.NOT_RUN, False)], 0),
        ([(CURRENT, ReplayResult.FAILS, False), (CURRENT, ReplayResult.PASSES, False)], 1),
        ([(CURRENT, ReplayResult.FAILS, False), (FIXED, ReplayResult.NOT_RUN, True)], 3),
        ([(CURRENT, ReplayResult.NOT_RUN, False)], 5),
    ],
)
def test_the_exit_code_of_replays(
    outcomes: list[tuple[FindingRecord, ReplayResult, bool]], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing was replayed, that is no success, and neither is a failed run."""
    made = [Outcome(record, result, version="0.30.0", broken=broken) for record, result, broken in outcomes]
    monkeypatch.setattr(command, "replays_of", lambda *_: iter(made))
    assert main(["findings", "--replay"]) == code


def ended(folder: Path, replays: list[FindingReplay]) -> Results:
    """Return the results of a run that left these replays in a folder."""
    engine = EngineResult(name="vLLM", version="9.9", adapter="x", worker="x", config={}, capabilities={})
    found = msgspec.structs.replace(results(), findings=replays, engine=engine, fault=None)
    folder.mkdir(parents=True)
    (folder / "results.json").write_bytes(encode(found))
    return found


def test_the_findings_of_an_engine_share_a_run_and_each_has_its_outcome(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each engine and worker has one command. A finding that the run did not reach makes the command fail."""
    group = [one for one in RECORDS.values() if (one.found.adapter, one.found.worker) == ("vllm-inproc", "fingerprint")]
    commands: list[list[str]] = []

    def run(words: list[str], **_: object) -> object:
        commands.append(words)
        first = FindingReplay(finding=group[0].id, requirement="x", cell="x", result=ReplayResult.FAILS, seconds=0.5)
        ended(tmp_path / "vllm-inproc-fingerprint", [first])
        return type("Done", (), {"returncode": 1})()

    monkeypatch.setattr(finding_runs.subprocess, "run", run)
    monkeypatch.setattr(finding_runs, "obstacle", lambda _: "")
    found = list(replays_of(group, tmp_path, lambda _: None))
    assert len(commands) == 1
    assert (found[0].result, found[0].version, found[0].seconds) == (ReplayResult.FAILS, "9.9", 0.5)
    assert all(one.result is ReplayResult.NOT_RUN and one.broken for one in found[1:])


def test_a_run_replays_only_and_knows_the_waivers() -> None:
    """The run has the cells and requirements of its findings."""
    words = command_of([CURRENT], Path("out"))
    at = words.index("--findings")
    assert words[at : at + 2] == ["--findings", "only"]
    assert words[words.index("--cells") + 1] == CURRENT.found.cell
    assert words[words.index("--requirements") + 1] == CURRENT.requirement
    assert words[words.index("--known-issues") + 1] == str(ROOT / "adapters" / CURRENT.engine / "known_issues.toml")


def test_a_finding_of_a_trained_model_is_replayed_on_that_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model must have been fetched, because a replay downloads nothing."""
    record = msgspec.structs.replace(CURRENT, found=msgspec.structs.replace(CURRENT.found, model="smollm2"))
    words = command_of([record], Path("out"))
    assert words[words.index("--model") + 1] == "smollm2"
    assert "--model" not in command_of([CURRENT], Path("out"))
    for name in ("ENGINES", "CELLS"):
        here = dict.fromkeys((CURRENT.found.adapter, CURRENT.found.cell), Installed())
        monkeypatch.setattr(finding_runs, name, here)
    monkeypatch.setattr(finding_runs, "generated_files", lambda: tmp_path)
    assert obstacle(record) == "it needs a trained model: coldproof model smollm2"
    (tmp_path / "trained" / "smollm2").mkdir(parents=True)
    assert obstacle(record) == ""


class Installed:
    """An engine and a cell that are available."""

    name, start, installed = "there", True, True

    def obstacle(self, _engine: str, _worker: str) -> None:
        """Return no obstacle."""


def test_a_run_without_results_is_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The outcome names its exit code and folder."""
    monkeypatch.setattr(finding_runs, "obstacle", lambda _: "")
    monkeypatch.setattr(finding_runs.subprocess, "run", lambda *_, **__: type("Done", (), {"returncode": 3})())
    (found,) = replays_of([CURRENT], tmp_path, lambda _: None)
    assert found.broken
    assert "its run ended with exit code 3" in found.words


def test_a_replay_that_is_impossible_gives_the_reason() -> None:
    """The reasons are a missing case, an engine that Coldproof does not start, a server that was attached to, and an
    engine that is not installed.
    """
    lost = next(record for record in RECORDS.values() if record.no_case is not None)
    assert obstacle(lost) == lost.no_case
    attached = msgspec.structs.replace(CURRENT, found=msgspec.structs.replace(CURRENT.found, adapter="endpoint"))
    assert "does not start endpoint" in obstacle(attached)
    with_case = [record for record in RECORDS.values() if record.no_case is None]
    on_a_server = [record for record in with_case if record.found.cell == ATTACHED.name]
    assert on_a_server
    assert all("on a server that was attached to" in obstacle(record) for record in on_a_server)
    absent = [record for record in with_case if record not in on_a_server and not ENGINES[record.adapter].installed]
    assert all(obstacle(record).startswith("not installed: ") for record in absent)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Return a report folder with the case of a finding, and with a case that no finding covers."""
    known = read_finding(CURRENT).case
    assert known is not None
    workload = known.workload
    new = msgspec.structs.replace(known, id="LORA-9-00000000", signature="hang; something new", cell="tight")
    return kept(tmp_path / "report", [known, msgspec.structs.replace(new, workload=workload)])


def kept(folder: Path, cases: list[Case], *, fault: InjectedFault | None = None) -> Path:
    """Return a report folder with these cases."""
    (folder / "cases").mkdir(parents=True)
    for one in cases:
        (folder / "cases" / f"{one.id}.json").write_bytes(encode(one))
    (folder / "results.json").write_bytes(encode(msgspec.structs.replace(results(), cases=cases, fault=fault)))
    return folder


def test_a_failure_that_no_finding_covers_is_proposed(
    report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes with its case. The record lacks what a person has to add, and is refused until then."""
    out = tmp_path / "proposed"
    assert main(["findings", "--collect", str(report), "--out", str(out)]) == 0
    (folder,) = (path.parent for path in out.glob("*/*/case.json"))
    assert folder.parent.name == CURRENT.engine
    case, _ = load_case(folder / "case.json")
    assert case.signature == "hang; something new"
    assert case.replay == f"coldproof findings --replay {folder.parent.name}/{folder.name}"
    assert str(folder) in capsys.readouterr().out
    with pytest.raises(UsageError, match="title"):
        read_record(folder / RECORD)
    filled = (folder / RECORD).read_text()
    for field in ("title", "cause", "distinct"):
        filled = filled.replace(f'{field} = ""', f'{field} = "known"')
    filled = filled.replace('severity = ""', 'severity = "crash or hang"')
    (folder / RECORD).write_text(filled.replace("source = []", f"source = {json.dumps(['a.py: f'])}"))
    record = read_record(folder / RECORD)
    assert read_finding(record, out).case == case


def test_nothing_is_proposed_for_an_engine_with_a_fault(report: Path, tmp_path: Path) -> None:
    """Such failures come from the fault and not from the engine."""
    fault = InjectedFault(name="x", summary="x", stands_for="x", acted=True)
    cases = [load_case(path)[0] for path in (report / "cases").glob("*.json")]
    broken = kept(tmp_path / "broken", cases, fault=fault)
    out = tmp_path / "proposed"
    assert main(["findings", "--collect", str(broken), "--out", str(out)]) == 0
    assert not list(out.glob("*/*"))


def test_pages_are_written(tmp_path: Path) -> None:
    """Both pages are written at once."""
    page, text = tmp_path / "f.html", tmp_path / "f.md"
    assert main(["findings", "--html", str(page), "--markdown", str(text)]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert text.read_text().startswith("# Findings\n")


def test_a_short_script_comes_before_the_one_of_the_case(capfd: pytest.CaptureFixture[str]) -> None:
    """A finding without a short one has that of its case."""
    assert main(["findings", "--script", SCRIPTED]) == 0
    assert capfd.readouterr().out == (FOLDER / SCRIPTED / SCRIPT).read_text()
    for words in ([SCRIPTED, "--from-case"], ["llamacpp/an-image-is-computed-under-the-last-adapter"]):
        assert main(["findings", "--script", *words]) == 0
        assert "def scenario(" in capfd.readouterr().out


def test_a_report_has_the_repair_as_a_diff_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else it has the words of the repair."""

    def no_diff(_repair: Repair) -> str:
        raise RepairError("not this release")

    for made, block in ((lambda _: "-old\n+new\n", True), (no_diff, False)):
        monkeypatch.setattr(command, "patch_of", made)
        assert main(["findings", "--issue", SCRIPTED]) == 0
        text = capfd.readouterr().out
        assert ("```diff\n-old\n+new\n```" in text) is block
        assert "## A change that mends it" in text


@pytest.mark.engine
@pytest.mark.parametrize("number", with_samples([1, None], 1), ids=["one of each status", "all"])
def test_findings_of_the_fingerprint_worker_are_still_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """The installed vLLM runs the cell `default` on one engine, and the fixed findings do not fail."""
    monkeypatch.setattr(finding_runs.subprocess, "run", lambda command, **_: run_command(command))
    if not ENGINES["vllm-inproc"].installed:
        pytest.skip("vLLM is not installed")
    found = [
        record
        for record in RECORDS.values()
        if (record.found.adapter, record.found.worker, record.found.cell) == ("vllm-inproc", "fingerprint", "default")
    ]
    statuses = {record.status for record in found}
    assert len(found) >= 4
    assert FindingStatus.FIXED in statuses
    assert len(statuses) >= 2
    cheap = [one for status in statuses for one in [record for record in found if record.status is status][:number]]
    assert main(["findings", "--replay", *(record.id for record in cheap), "--report-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for record in cheap:
        expected = ReplayResult.PASSES if record.status is FindingStatus.FIXED else ReplayResult.FAILS
        assert f"{record.id}: {expected.value} on " in said
    run = read_results(tmp_path / "vllm-inproc-fingerprint" / "results.json")
    assert [one.cell for one in run.findings] == ["default"] * len(cheap)
    assert run.totals["examples"] >= len(cheap)
