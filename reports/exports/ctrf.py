"""The run in the Common Test Report Format, which reporters for GitHub, Slack, Jenkins and others read.

Format: https://ctrf.io, schema 0.0.0 of https://github.com/ctrf-io/ctrf. It knows no error beside a failure: the raw
status has the verdict.
"""

from __future__ import annotations

import datetime
import json
from pathlib import PurePosixPath
from typing import Any

from coldproof.harness.schema.results import Results
from coldproof.reports.exports.reported_tests import Outcome, ReportedTest, reported_tests, run_facts
from coldproof.reports.format.text import visible_data

SPEC_VERSION = "0.0.0"
_STATUS = {Outcome.PASSED: "passed", Outcome.FAILED: "failed", Outcome.ERROR: "failed", Outcome.SKIPPED: "skipped"}
_TYPES = {".md": "text/markdown", ".json": "application/json", ".py": "text/x-python"}


def ctrf_json(results: Results) -> str:
    """Return the report as JSON: the tests of `reported_tests`, and the facts of the run."""
    tests = reported_tests(results)
    status = [_STATUS[test.outcome] for test in tests]
    start = _milliseconds(results.started)
    duration = round(1000 * results.duration_s)
    report: dict[str, Any] = {
        "reportFormat": "CTRF",
        "specVersion": SPEC_VERSION,
        "generatedBy": f"coldproof {results.coldproof_version}",
        "results": {
            "tool": {"name": "coldproof", "version": results.coldproof_version},
            "summary": {
                "tests": len(tests),
                **{one: status.count(one) for one in ("passed", "failed", "skipped", "pending", "other")},
                "start": start,
                "stop": start + duration,
                "duration": duration,
            },
            "tests": [_test(test) for test in tests],
            "extra": run_facts(results),
        },
    }
    return json.dumps(visible_data(report), ensure_ascii=False, indent=1) + "\n"


def _test(test: ReportedTest) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": test.name,
        "status": _STATUS[test.outcome],
        "duration": round(1000 * test.seconds),
        "suite": list(test.group),
        "rawStatus": test.kind,
    }
    if test.message:
        entry["message"] = test.message
    if test.details:
        entry["trace"] = "\n\n".join(test.details)
    if test.files:
        entry["attachments"] = [_attachment(path) for path in test.files]
    if test.facts:
        entry["extra"] = test.facts
    return entry


def _attachment(path: str) -> dict[str, str]:
    file = PurePosixPath(path)
    return {"name": file.name, "contentType": _TYPES[file.suffix], "path": path}


def _milliseconds(started: str) -> int:
    """Return a time of the results as milliseconds since 1970; 0 if it is none: the results may be somebody else's."""
    try:
        return round(1000 * datetime.datetime.fromisoformat(started).timestamp())
    except (ValueError, OverflowError):
        return 0
