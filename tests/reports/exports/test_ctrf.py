"""The run in the Common Test Report Format: the tests of the JUnit file, with the fields that the schema requires."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from support import report_samples as samples

from coldproof.harness.schema.results import Results
from coldproof.reports.exports.ctrf import ctrf_json
from coldproof.reports.exports.junit import junit_xml

RUNS = {
    "violated": samples.results(samples.case()),
    "stopped": samples.results(complete=False),
    "nothing": samples.results(requirements=[]),
}


def report(results: Results) -> dict[str, Any]:
    """Return the report of a run."""
    found: dict[str, Any] = json.loads(ctrf_json(results))
    assert (found["reportFormat"], found["specVersion"]) == ("CTRF", "0.0.0")
    inner: dict[str, Any] = found["results"]
    return inner


@pytest.mark.parametrize("name", RUNS)
def test_it_has_the_tests_of_the_junit_file(name: str) -> None:
    """An error is a failure here, and the summary counts them."""
    found = report(RUNS[name])
    suite = ElementTree.fromstring(junit_xml(RUNS[name])).find("testsuite")
    assert suite is not None
    assert [one["name"] for one in found["tests"]] == [one.attrib["name"] for one in suite.iter("testcase")]
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    summary = found["summary"]
    assert (summary["tests"], summary["failed"]) == (len(found["tests"]), failed)
    assert summary["passed"] + failed + summary["skipped"] == summary["tests"]
    assert summary["stop"] - summary["start"] == summary["duration"] > 0


def test_a_violated_requirement_has_its_reason_and_the_files_of_its_case() -> None:
    """The reason is one line; the trace says how to replay the case."""
    case = samples.case()
    test = next(one for one in report(RUNS["violated"])["tests"] if one["name"].startswith("LORA-1[tiny-llama]"))
    assert (test["status"], test["rawStatus"]) == ("failed", "VIOLATED")
    assert test["message"] == "VIOLATED: 1 distinct counterexamples"
    assert case.replay in test["trace"]
    assert {one["path"] for one in test["attachments"]} == {
        f"cases/{case.id}.{kind}" for kind in ("json", "md", "py", "trace.json")
    }


def test_a_run_of_another_clock_is_written_too() -> None:
    """The time of the start is somebody else's text when events come from outside."""
    assert report(samples.results(started="yesterday"))["summary"]["start"] == 0
