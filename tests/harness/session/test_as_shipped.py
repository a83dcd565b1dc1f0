"""A run with repairs replays the findings that they remove on the engine as it is shipped, before it draws anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.paths import COUNTED, ROOT
from support.report_samples import case as sample_case
from support.report_samples import results as sample_results
from support.suite_runs import run_coldproof

from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.finding_records import read_finding, read_records
from coldproof.harness.case.repairs import read_repairs
from coldproof.harness.event_log import EventLog
from coldproof.harness.options import ONLY, Options
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingReplay, ReplayResult
from coldproof.harness.schema.results import CellResult, Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.as_shipped import FOR_PROOFS, ShippedReplays, repaired_findings, shipped_command

RESET, ROWS = "vllm/idle-reset-is-not-announced", "vllm/rows-behind-a-prompt-enter-the-key"
DESIGN = "vllm/event-lacks-the-adapter-path"
MASK = "vllm/row-mask-is-not-in-the-key"  # the repair of the rows removes it, too
PLACES = {("events", "EVENT-5"), ("embeds", "EMBED-1")}


def options_of(*names: str, **more: Any) -> Options:
    """Return the options of a run on vLLM's engine in process, with the repairs of these findings."""
    known = read_repairs("vllm")
    repairs: tuple[Repair, ...] = tuple(known[name] for name in names)
    given = {"engine": "vllm-inproc", "worker": "fingerprint", "report_dir": Path("report"), "repairs": repairs}
    return Options(**{**given, **more})


def test_findings_that_the_repairs_remove_are_replayed() -> None:
    """They are those of the cells and requirements of the run."""
    assert [one.id for one in repaired_findings(options_of(RESET, ROWS), PLACES)] == [RESET, MASK, ROWS]
    assert [one.id for one in repaired_findings(options_of(RESET), PLACES)] == [RESET]
    assert repaired_findings(options_of(RESET, ROWS), {("events", "EVENT-4")}) == []
    assert repaired_findings(options_of(), PLACES) == []


@pytest.mark.parametrize("more", [{"findings": ONLY}, {"findings": "off"}, {"fault": "a-fault"}, {"engine": "vllm"}])
def test_other_runs_replay_nothing_on_the_engine_as_it_is_shipped(more: dict[str, Any]) -> None:
    """Neither does a server, where each cell takes another start."""
    assert repaired_findings(options_of(RESET, **{"worker": "model", **more}), PLACES) == []


def test_the_replays_run_without_repairs_under_the_known_issues_of_the_run() -> None:
    options = options_of(RESET, known_issues=Path("known.toml"), budget="10m", engine_args=("--seed", "1"))
    words = shipped_command(options, [read_finding(read_records()[RESET])], report_dir="scratch")
    assert "--repairs" not in words
    for option, value in {
        "--findings": ONLY,
        "--known-issues": "known.toml",
        "--budget": f"{60 + FOR_PROOFS:.0f}s",
        "--cells": "events",
        "--requirements": "EVENT-5",
        "--report-dir": "scratch",
    }.items():
        assert words[words.index(option) + 1] == value
    assert "--engine-args=--seed 1" in words


class Heard:
    """What replays have emitted and saved."""

    def __init__(self, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.cases: list[Case] = []
        log = EventLog(folder / "events.ndjson")
        log.subscribe(lambda kind, fields: self.events.append({"event": kind, **fields}))
        options = options_of(RESET, report_dir=Path("report"))
        self.replays = ShippedReplays(options, log, save_case=lambda case, _: self.cases.append(case))
        self.findings = [read_finding(read_records()[RESET])]

    def report(self, results: Results | None, code: int = 0) -> dict[str, Any]:
        """Report the results of the replays' run, and return the event of the finding."""
        self.replays.report(self.findings, results, code, folder="/tmp/scratch")
        (event,) = self.events
        return event


def replays_of(result: ReplayResult, verdict: Verdict, known_issue: str | None = "known") -> Results:
    """Return the results of a run that has replayed the finding, with a case of it and one of another finding.

    `verdict`: of the requirement in the cell. `known_issue`: what waives the case.
    """
    own = sample_case(
        requirement="EVENT-5", cell="events", known_issue=known_issue, replay="coldproof replay /tmp/scratch/c"
    )
    own = msgspec.structs.replace(own, id="EVENT-5-1")
    replay = FindingReplay(finding=RESET, requirement="EVENT-5", cell="events", result=result, case=own.id)
    found = sample_results(own, msgspec.structs.replace(own, id="EVENT-5-2"), findings=[replay])
    cell = CellResult(
        cell="events", verdict=verdict, reason="it is so", examples=1, requests=1, evidence={}, seconds=1.0
    )
    requirement = msgspec.structs.replace(found.requirements[0], id="EVENT-5", cells=[cell])
    return msgspec.structs.replace(found, requirements=[requirement], problem="")


def test_a_case_that_still_fails_is_reported_with_its_verdict(tmp_path: Path) -> None:
    """Its case is kept in the run's report, without that of another finding."""
    heard = Heard(tmp_path)
    event = heard.report(replays_of(ReplayResult.FAILS, Verdict.KNOWN_ISSUE))
    assert (event["verdict"], event["reason"]) == (Verdict.KNOWN_ISSUE, "known")
    assert not event["replay"].repaired
    assert [one.id for one in heard.cases] == ["EVENT-5-1"]
    assert heard.cases[0].replay == "coldproof replay report/c"


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.VIOLATED, (Verdict.VIOLATED, "it is so")),
        (Verdict.NOT_EXERCISED, (Verdict.INCONCLUSIVE, "not confirmed: ")),  # of another test, which drew nothing
    ],
)
def test_a_case_that_nothing_waives_has_the_verdict_of_its_confirmation(
    verdict: Verdict, expected: tuple[Verdict, str], tmp_path: Path
) -> None:
    """A confirmation that shows nothing leaves it open, whatever other tests of the requirement did not draw."""
    event = Heard(tmp_path).report(replays_of(ReplayResult.FAILS, verdict, known_issue=None))
    assert event["verdict"] is expected[0]
    assert event["reason"].startswith(expected[1])


def test_a_case_that_is_gone_has_no_verdict(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    event = heard.report(replays_of(ReplayResult.PASSES, Verdict.CONFORMS))
    assert (event["verdict"], event["replay"].result, heard.cases) == (None, ReplayResult.PASSES, [])


def test_a_run_of_replays_that_broke_is_said(tmp_path: Path) -> None:
    """Nothing is known then of the engine as it is shipped."""
    event = Heard(tmp_path).report(None, code=3)
    assert event["replay"].result is ReplayResult.NOT_RUN
    assert event["replay"].words == "its run ended with exit code 3"


@pytest.mark.engine
@pytest.mark.nightly
def test_a_run_draws_on_the_repaired_engine_behind_its_known_causes(tmp_path: Path) -> None:
    """The case fails on the engine as it is shipped. With its repair it is gone, and all examples conform."""
    words = ["--engine", "vllm-inproc", "--worker", "fingerprint", "--cells", "events", *COUNTED]
    words += ["--requirements", "EVENT-3,EVENT-5", "--repairs", "known", "--report-dir", str(tmp_path / "run")]
    words += ["--known-issues", str(ROOT / "adapters" / "vllm" / "known_issues.toml")]
    done = run_coldproof(["-q", *words])
    assert done.returncode == 0, done.stdout
    results = read_results(tmp_path / "run" / "results.json")
    replayed = {(one.finding, one.repaired): one.result for one in results.findings}
    assert replayed == {
        (RESET, False): ReplayResult.FAILS,
        (RESET, True): ReplayResult.PASSES,
        (DESIGN, True): ReplayResult.FAILS,  # it has no repair
    }
    found = {one.id: one for one in results.requirements}
    assert {one.verdict for one in found.values()} == {Verdict.KNOWN_ISSUE}
    assert found["EVENT-5"].known_causes == [RESET]
    assert found["EVENT-5"].reason == (
        f"1 cause ({RESET}); conforms in {found['EVENT-5'].examples} examples with it repaired"
    )
    assert found["EVENT-3"].known_causes == []
    assert {waiver.finding for waiver in results.waivers if waiver.state == "used"} == {RESET, DESIGN}
    assert all((tmp_path / "run" / "cases" / f"{one.id}.json").is_file() for one in results.cases)
