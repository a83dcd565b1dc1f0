"""A run begins with its engine's known findings: waived ones are known issues, and fixed ones that fail are
violations.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.paths import COUNTED
from support.suite_runs import run_coldproof

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.case.finding_folder import write_case
from coldproof.harness.case.finding_records import RECORD, read_finding, read_records
from coldproof.harness.case.load import load_case
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.options import Options
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import RequirementResult, Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.known_findings import applicable, needs_engine_starts, one_of_each

FLAW, OTHER_FLAW = "OVERCOUNT", "NEVER_HITS"
KNOWN = """
[[accepted]]
finding = "scripted/overcount"
versions = ">=0"
reason = "it counts too many"
"""
REST = """
title = "counts too many"
engine = "scripted"
requirement = "REUSE-1"
failure_class = "accounting"
signature = {signature}
first_release = "0.9"
last_release = "1"
severity = "wrong count or event"
cause = "a block too many"
source = ["scripted_engine.py"]
distinct = "the only one"

[found]
adapter = "scripted"
worker = "model"
layer = "server"
cell = "scripted"
requests = 2
seconds = 0.1
environment = {{}}
"""


def ran(folder: Path, flaw: str, findings: Path, *more: str) -> Results:
    """Return the results of a run of REUSE-1 on a scripted engine."""
    folder.mkdir()
    given = {"COLDPROOF_FLAW": flaw, "COLDPROOF_FINDINGS": str(findings)}
    words = ["-p", "support.flawed_engine", "--engine", "scripted", "--cells", "scripted"]
    words += ["--requirements", "REUSE-1", *COUNTED, "--diagnose", "none", "--report-dir", str(folder), *more]
    done = run_coldproof(words, given)
    assert (folder / "results.json").is_file(), done.stdout
    return read_results(folder / "results.json")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return a counterexample that was drawn in a run without findings."""
    folder = tmp_path_factory.mktemp("drawn") / "run"
    results = ran(folder, FLAW, folder, "--findings", "off")
    return load_case(folder / "cases" / f"{results.cases[0].id}.json")[0]


def kept(folder: Path, case: Case, status: str) -> Path:
    """Return a folder of findings with this case. `status`: that line of its record."""
    found = folder / "findings"
    write_case(case, "scripted/overcount", found / "scripted" / "overcount")
    text = f"{status}\n{REST.format(signature=json.dumps(case.signature))}"
    (found / "scripted" / "overcount" / RECORD).write_text(text)
    return found


def verdict_of(results: Results) -> RequirementResult:
    """Return the result of REUSE-1."""
    (found,) = results.requirements
    return found


def waivers(folder: Path) -> tuple[str, str]:
    """Return the option for a file that waives the finding."""
    path = folder / "known.toml"
    path.write_text(KNOWN)
    return "--known-issues", str(path)


def test_a_waived_finding_is_a_known_issue_and_the_trial_goes_on(case: Case, tmp_path: Path) -> None:
    """Its replay is the first example and counts with its requests; drawing begins after it."""
    findings = kept(tmp_path, case, 'status = "not searched"')
    results = ran(tmp_path / "run", FLAW, findings, *waivers(tmp_path))
    (replay,) = results.findings
    assert (replay.finding, replay.result) == ("scripted/overcount", ReplayResult.FAILS)
    found = verdict_of(results)
    assert found.verdict is Verdict.KNOWN_ISSUE
    assert found.examples > 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.ndjson").read_text().splitlines()]
    first = next(event for event in lines if event["event"] == "example")
    assert first["history"]["nonce"] == case.nonce
    assert first["findings"]
    assert results.waivers[0].finding == "scripted/overcount"
    assert results.waivers[0].state == "used"


@pytest.mark.nightly
def test_only_the_replay_of_a_waived_finding_fails(case: Case, tmp_path: Path) -> None:
    """Without drawing, the verdict is that of the replay, with its case."""
    findings = kept(tmp_path, case, 'status = "not searched"')
    results = ran(tmp_path / "run", FLAW, findings, *waivers(tmp_path), "--findings", "only")
    found = verdict_of(results)
    assert (found.verdict, found.examples) == (Verdict.KNOWN_ISSUE, 1)
    assert found.reason.startswith("it counts too many (scripted/overcount): by signature alone: ")
    assert "; besides it, " in found.reason
    assert [one.signature for one in results.cases] == [case.signature]
    assert results.cases[0].reproduction.note == "a replay of the finding scripted/overcount"


def test_a_finding_that_nothing_waives_is_a_violation_at_once(case: Case, tmp_path: Path) -> None:
    """It is confirmed on fresh engines like any counterexample, but not minimised again. Its cause is named."""
    results = ran(tmp_path / "run", FLAW, kept(tmp_path, case, 'status = "not searched"'))
    found = verdict_of(results)
    assert found.verdict is Verdict.VIOLATED
    said = "It matches scripted/overcount, with no public report known, not accepted in this run: by signature alone"
    assert said in found.reason
    assert (results.exit_code, results.causes[0].finding) == (1, "scripted/overcount")
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert "**known, not waived**" in summary
    assert "matches scripted/overcount by signature alone" in summary
    assert results.cases[0].workload == case.workload
    assert results.cases[0].reproduction.fresh_failed
    assert not results.findings[0].regression


def test_a_fixed_finding_that_fails_again_is_a_regression_whatever_is_waived(case: Case, tmp_path: Path) -> None:
    """The finding is fixed in release 1."""
    findings = kept(tmp_path, case, 'status = "fixed"\nfixed_in = "1"')
    results = ran(tmp_path / "run", FLAW, findings, *waivers(tmp_path))
    found = verdict_of(results)
    assert found.verdict is Verdict.VIOLATED
    assert found.reason.startswith("regression of scripted/overcount, fixed in 1: accounting: ")
    assert results.findings[0].regression


@pytest.mark.nightly
def test_a_finding_that_is_fixed_later_is_waived(case: Case, tmp_path: Path) -> None:
    """On release 1 it is known to fail, so the waiver counts."""
    findings = kept(tmp_path, case, 'status = "fixed"\nfixed_in = "1.1"')
    results = ran(tmp_path / "run", FLAW, findings, *waivers(tmp_path), "--findings", "only")
    assert verdict_of(results).verdict is Verdict.KNOWN_ISSUE


def test_an_engine_without_the_bug_conforms(case: Case, tmp_path: Path) -> None:
    """The replay passes and counts as an example, and the waiver is stale."""
    findings = kept(tmp_path, case, 'status = "not searched"')
    results = ran(tmp_path / "run", "CLEAN", findings, *waivers(tmp_path))
    assert [one.result for one in results.findings] == [ReplayResult.PASSES]
    assert verdict_of(results).verdict is Verdict.CONFORMS
    assert results.waivers[0].state == "stale"


def test_another_bug_is_no_replay_of_the_finding(case: Case, tmp_path: Path) -> None:
    """The case fails with another signature, which the waiver does not match, so it is a violation."""
    findings = kept(tmp_path, case, 'status = "not searched"')
    results = ran(tmp_path / "run", OTHER_FLAW, findings, *waivers(tmp_path))
    assert [one.result for one in results.findings] == [ReplayResult.OTHERWISE]
    assert verdict_of(results).verdict is Verdict.VIOLATED


def test_a_run_replays_the_findings_of_its_model() -> None:
    """On another model the replay would pass although nothing is fixed."""
    found = {
        name: applicable(Options(engine="vllm", report_dir=Path(), model=name))
        for name in (None, "smollm2", "/models/mine")
    }
    assert [one.record.found.model for one in found["smollm2"]] == ["smollm2"]
    assert {one.record.found.model for one in found[None]} == {None}
    assert found["/models/mine"] == []


@pytest.mark.nightly
def test_benchmarks_switch_it_off(case: Case, tmp_path: Path) -> None:
    """Nothing is replayed, and the bug is drawn."""
    findings = kept(tmp_path, case, 'status = "not searched"')
    results = ran(tmp_path / "run", FLAW, findings, "--findings", "off")
    assert results.findings == []
    assert verdict_of(results).verdict is Verdict.VIOLATED


def test_a_known_issue_names_a_finding_that_exists(case: Case, tmp_path: Path) -> None:
    """Otherwise the run does not start."""
    with pytest.raises(AssertionError, match="accepted finding 1, 'scripted/overcount', is unknown"):
        ran(tmp_path / "run", FLAW, tmp_path, *waivers(tmp_path))


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ("vllm/prompt-logprobs-beside-another-request", True),  # it ends the server
        ("vllm/file-tier-key-lacks-the-weights", True),  # it starts another engine
        ("vllm/adapter-key-lacks-the-contents", False),
    ],
)
def test_a_case_that_ends_a_server_is_known_before_it_runs(identity: str, expected: bool) -> None:
    """Such a case is recognised before it runs, and a run on a server does not begin with it."""
    assert needs_engine_starts(read_finding(read_records()[identity])) is expected


def test_a_requirement_of_several_tests_is_that_of_a_test_that_the_engine_supports() -> None:
    """The last test must not decide: saved state with adapters is TIER-3 too, and few engines can save state."""

    def of(*needs: Capability, name: str = "TIER-3") -> Requirement:
        return Requirement(name, "title", needs, (Requests.HITS,))

    can, cannot = of(Capability.TOKEN_PROMPTS), of(Capability.CACHE_SALT)
    other = of(Capability.CACHE_SALT, name="TIER-4")

    def lacks(one: Requirement) -> bool:
        return Capability.CACHE_SALT in one.needs

    assert one_of_each([cannot, can, cannot, other], lacks) == [can, other]
    assert one_of_each([cannot, can], lacks) == one_of_each([can, cannot], lacks) == [can]
    assert one_of_each([cannot, cannot], lacks) == [cannot]
