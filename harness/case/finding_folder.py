"""Writes the case of a finding, without anything of the machine that found it, and makes its script and its report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.registry import ATTACHED
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.finding_issue import issue_text
from coldproof.harness.case.finding_records import CASE, ISSUE, REPRODUCER, StoredFinding
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.schema.case import Case
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


def script_of(finding: StoredFinding, *, from_case: bool = False) -> str:
    """Return the hand-made script of a finding or, without one, that which is made from its case. Raises OSError.

    `from_case`: the latter also where there is the former.
    """
    if finding.script is not None and not from_case:
        return finding.script
    return (finding.folder / REPRODUCER).read_text() if finding.case is None else reproducer(finding.case)


def report_of(finding: StoredFinding, *, repair: Repair | None = None, diff: str = "") -> str:
    """Return the report of a finding: made from its case or, without one, stored beside its record. Raises OSError.

    `repair`: what removes its cause. `diff`: the repair as one, if the engine is installed.
    """
    if finding.case is None:
        return (finding.folder / ISSUE).read_text()
    return issue_text(finding.record, finding.case, script=finding.script, repair=repair, diff=diff)


def write_case(case: Case, identity: str, folder: Path) -> Case:
    """Write the case of a finding, and return it as it was written. Raises OSError."""
    kept = portable(case, identity)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CASE, encode(kept).decode())
    return kept
