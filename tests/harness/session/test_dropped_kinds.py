"""An engine that crashes on a request kind no longer gets it in the run, and there is a case about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.paths import COUNTED
from support.suite_runs import run_coldproof

from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import FailureClass, Verdict

KNOWN = """
[[issue]]
requirement = "{requirement}"
signature = "*; no reload*"
versions = ">=0"
link = "none known"
reason = "it dies"
"""


def ran(
    folder: Path, kind: str, requirements: str, *more: str, noise: bool = False
) -> tuple[Results, list[dict[str, Any]]]:
    """Run both cells on the crashing engine. Return the results, and the events without the examples."""
    folder.mkdir(exist_ok=True)
    given = {"COLDPROOF_CRASHING": kind, "COLDPROOF_CRASHING_TIMES": str(folder / "times")}
    given |= {"COLDPROOF_CRASHING_NOISE": "1"} if noise else {}
    words = ["-p", "support.crashing_engine", "--engine", "crashing", "--model", "none"]
    words += ["--requirements", requirements, "--cells", "crashing,crashing-too", *COUNTED]
    done = run_coldproof([*words, "--report-dir", str(folder), *more], given)
    assert (folder / "results.json").is_file(), done.stdout
    events = [json.loads(line) for line in (folder / "events.ndjson").read_text().splitlines()]
    return read_results(folder / "results.json"), [event for event in events if event["event"] != "example"]


def crashes(folder: Path, events: list[dict[str, Any]]) -> tuple[int, int]:
    """Return how many engines crashed before the run stopped sending the kind, and how many after it."""
    at = max(event["at"] for event in events if event["event"] == "kind_dropped")
    times = [round(float(line), 3) for line in (folder / "times").read_text().splitlines()]  # as events have them
    return sum(time <= at for time in times), sum(time > at for time in times)


@pytest.mark.parametrize(
    ("kind", "needs_it"),
    [
        pytest.param("prompt logprobs beside another request", False, marks=pytest.mark.nightly),
        ("several answers", True),
        pytest.param("structured output", True, marks=pytest.mark.nightly),
    ],
)
def test_the_run_stops_sending_what_crashes_its_engine(kind: str, needs_it: bool, tmp_path: Path) -> None:
    """No engine crashes after the first confirmed crash. The report says what is not sent, since when, why and
    where.
    """
    results, events = ran(tmp_path, kind, "SURFACE-1")
    (dropped,) = results.dropped_kinds
    assert (dropped.kind, dropped.cell) == (kind, "crashing")
    (case,) = (one for one in results.cases if one.id == dropped.case)
    assert case.requirement == dropped.requirement
    assert case.reproduction.fresh_failed
    assert dropped.why == case.sentence
    assert 0 < dropped.at < results.duration_s
    assert (tmp_path / "cases" / f"{case.id}.py").is_file()
    before, after = crashes(tmp_path, events)
    assert before > 0
    assert after == 0
    assert dropped.narrows == ["SURFACE-1"]
    later = [e for e in events if e["event"] == "verdict" and kind in e["narrowed"]]
    assert all(f"requests with {kind} have not been sent since case {case.id}" in e["reason"] for e in later)
    assert {e["verdict"] for e in later} == {Verdict.NOT_EXERCISED if needs_it else Verdict.CONFORMS}
    assert {e["cell"] for e in later} == {"crashing-too"}
    page, summary = ((tmp_path / name).read_text() for name in ("index.html", "summary.md"))
    assert "Requests that were no longer sent" in page
    assert "Requests that were no longer sent" in summary


@pytest.mark.nightly
def test_what_a_known_issue_waives_is_a_known_issue_where_it_is_not_sent(tmp_path: Path) -> None:
    """A run whose engine has a known crash ends as if it crashed in every cell."""
    issues = tmp_path / "known.toml"
    issues.write_text(KNOWN.format(requirement="SURFACE-1"))
    results, events = ran(tmp_path / "out", "structured output", "SURFACE-1", "--known-issues", str(issues))
    assert crashes(tmp_path / "out", events)[1] == 0
    assert all(case.known_issue for case in results.cases)
    verdicts = [e["verdict"] for e in events if e["event"] == "verdict" and "structured_output" in e["test"]]
    assert verdicts == [Verdict.KNOWN_ISSUE, Verdict.KNOWN_ISSUE]


def test_a_crash_in_the_calibration_becomes_a_case(tmp_path: Path) -> None:
    """Its requirement sends such a request first; no other test and no later calibration sends one."""
    results, events = ran(tmp_path, "prompt logprobs beside another request", "SURFACE-1", noise=True)
    assert results.calibration is not None
    assert results.calibration.band is not None
    (dropped,) = results.dropped_kinds
    assert dropped.case
    requirements = [event["dropped"]["requirement"] for event in events if event["event"] == "kind_dropped"]
    assert requirements == ["", "SURFACE-1"]
    assert crashes(tmp_path, events)[1] == 0


def test_an_engine_that_crashes_on_logprobs_is_compared_by_its_tokens(tmp_path: Path) -> None:
    """The engine gave no answer to the calibration, which requests logprobs wherever possible."""
    results, events = ran(tmp_path, "logprobs", "REUSE-1")
    (dropped,) = results.dropped_kinds
    assert (dropped.kind, dropped.requirement, dropped.case) == ("logprobs", "", "")
    assert crashes(tmp_path, events)[1] == 0
    assert [one.verdict for one in results.requirements] == [Verdict.CONFORMS]


@pytest.mark.parametrize(
    ("requirements", "violated"),
    [("GROUND-1,REUSE-1", "GROUND-1"), pytest.param("REUSE-1,REUSE-3", "REUSE-1", marks=pytest.mark.nightly)],
)
def test_an_engine_that_crashes_on_a_plain_request_leaves_a_case(
    requirements: str, violated: str, tmp_path: Path
) -> None:
    """The case has one request and a reproducer. The failure belongs to GROUND-1 or the first requirement of each
    cell.
    """
    results, _ = ran(tmp_path, "every request", requirements)
    assert results.exit_code == 1
    assert {case.requirement for case in results.cases} == {violated}
    for case in results.cases:
        assert len(case.requests) == 1
        assert case.failure_class is FailureClass.NOT_THE_CACHE
        assert case.reproduction.fresh_failed
        assert (tmp_path / "cases" / f"{case.id}.py").is_file()
    others = {one.verdict for one in results.requirements if one.id != violated}
    assert others == {Verdict.NOT_EXERCISED}


def test_a_waived_crash_on_a_plain_request_waives_what_it_blocks(tmp_path: Path) -> None:
    """A cell in which an engine cannot answer is a known issue as a whole."""
    issues = tmp_path / "known.toml"
    issues.write_text(KNOWN.format(requirement="GROUND-1"))
    results, _ = ran(tmp_path / "out", "every request", "GROUND-1,REUSE-1", "--known-issues", str(issues))
    assert {one.verdict for one in results.requirements} == {Verdict.KNOWN_ISSUE}
    assert results.exit_code == 0
