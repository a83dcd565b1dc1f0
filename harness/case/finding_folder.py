"""Writes the case of a finding, without anything of the machine that found it, and makes its script and its report."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.registry import ATTACHED, title_of
from coldproof.harness.case.bug_report import bug_report
from coldproof.harness.case.finding_records import CASE, ISSUE, REPRODUCER, StoredFinding
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord
from coldproof.harness.schema.results import encode
from coldproof.harness.schema.verdict import FailureClass
from coldproof.reports.exports.write import write_text
from coldproof.reports.format.text import tail

MODELS = re.compile(r"(?:/[\w.+-]+)*/models/(?=[0-9a-f]{16}\b)")  # the folder of generated models
PACKAGES = re.compile(r"(?:/[\w.+-]+)+/(?=(?:site|dist)-packages/)")
KEPT = "/tmp/coldproof/models/"
# All folders of any other absolute path. Routes of servers begin with /v1/ or /inference/.
PATH = re.compile(rf"(?<![\w./:-])(?!/v1/|/inference/|{KEPT})(?:/[\w.+-]+)+/(?=[\w.+-]+)")
LOG_LINES = 30
EXPLAINED_BY_LOGS = (FailureClass.CRASH, FailureClass.HANG, FailureClass.NOT_THE_CACHE, FailureClass.API)
MANY_SAMPLES = 40
NEW_LINE = "\n"


def portable(case: Case, identity: str) -> Case:
    """Return a case without paths of its machine and without its waiver. `identity`: of the finding.

    A generated model keeps a path, in a temporary folder, by which its reproducer is known to make it.
    """
    log = tail(case.log_tail, lines=LOG_LINES) if case.failure_class in EXPLAINED_BY_LOGS else ""
    kept = msgspec.structs.replace(
        case,
        known_issue=None,
        log_tail=log,
        queue=case.queue if len(case.queue) <= MANY_SAMPLES else [],
        replay=replay_command(case, identity),
    )
    return msgspec.convert(without_paths(msgspec.to_builtins(kept)), Case)


def replay_command(case: Case, identity: str) -> str:
    """Return the command that replays the case of a finding, on a server of the user's if Coldproof starts none."""
    if case.cell != ATTACHED.name:
        return f"coldproof findings --replay {identity}"
    return f"coldproof replay findings/{identity}/{CASE} --engine {case.engine} --engine-url URL"


def without_paths(value: Any) -> Any:
    """Return plain data in which no text has the folders of an absolute path, but those of generated models."""
    if isinstance(value, str):
        return PATH.sub("", MODELS.sub(KEPT, PACKAGES.sub("", value)))
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    if isinstance(value, dict):
        return {key: without_paths(one) for key, one in value.items()}
    return value


def issue_text(record: FindingRecord, case: Case, statement: str) -> str:
    """Return the report to file: that of the case, with the root cause."""
    report = bug_report(case, statement=statement, environment=record.found.environment)
    report = f"{heading(record, case)}\n{report.partition(NEW_LINE)[2]}"
    report = report.replace(f"`coldproof replay {case.id}.json`", f"`{case.replay}`")
    report = report.replace(f"{case.id}.json", CASE)
    places = "\n".join(f"* `{place}`" for place in record.source)
    upstream = f"\n\nRelated: {', '.join(record.upstream)}" if record.upstream else ""
    rate = "" if record.rate is None else f"\n\n{record.rate}"
    return f"{report.rstrip()}\n\n## Cause\n\n{record.cause.strip()}\n\n{places}{rate}{upstream}\n"


def heading(record: FindingRecord, case: Case) -> str:
    """Return the title of the report."""
    return f"# [Bug] {title_of(record.engine)} {case.engine_version}: {record.title}"


def script_of(finding: StoredFinding) -> str:
    """Return the script of a finding: made from its case or, without one, stored beside its record. Raises OSError."""
    return (finding.folder / REPRODUCER).read_text() if finding.case is None else reproducer(finding.case)


def report_of(finding: StoredFinding, statement: Callable[[str], str]) -> str:
    """Return the report of a finding: made from its case or, without one, stored beside its record. Raises OSError.

    `statement`: of a requirement.
    """
    if finding.case is None:
        return (finding.folder / ISSUE).read_text()
    return issue_text(finding.record, finding.case, statement(finding.case.requirement))


def write_case(case: Case, identity: str, folder: Path) -> Case:
    """Write the case of a finding, and return it as it was written. Raises OSError."""
    kept = portable(case, identity)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CASE, encode(kept).decode())
    return kept
