"""Reads the findings: for each root cause found in an engine, its record and its case.

A folder `ENGINE/NAME` has `record.toml` and `case.json`; without a case, it has a script and a report that somebody
wrote (`reproducer.py` and `issue.md`). Many have a short hand-made script, `script.py`, that uses the engine's own API.
Known issues name it as their `finding`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from coldproof import adapters
from coldproof import findings as package
from coldproof.harness.case.load import load_case
from coldproof.harness.options import UsageError
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, FindingStatus
from coldproof.harness.schema.stored_files import read_toml
from coldproof.harness.workload.steps import Workload

FOLDER = Path(package.__file__ or "").resolve().parent
RECORD, CASE, SCRIPT, REPRODUCER, ISSUE = "record.toml", "case.json", "script.py", "reproducer.py", "issue.md"
REGRESSION = "regression_test.py"  # in the style of the engine's own tests
ENGINES = Path(adapters.__file__ or "").resolve().parent
NAME = re.compile(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*")
MIN_QUERIES = 3
UNREPORTED = (FindingStatus.NEW, FindingStatus.NOT_SEARCHED)
INTENDED = (FindingStatus.BY_DESIGN, FindingStatus.LIMITATION)


class StoredFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, with its case and the workload in it; None for both if the record says why there is none."""

    record: FindingRecord
    folder: Path
    case: Case | None
    workload: Workload | None

    @property
    def id(self) -> str:
        """Return the name of its folder, as `vllm/some-name`."""
        return self.record.id

    @property
    def script(self) -> str | None:
        """Return the hand-made script; None if there is none. Raises OSError."""
        path = self.folder / SCRIPT
        return path.read_text(encoding="utf-8") if path.is_file() else None


def scripted(records: Iterable[FindingRecord]) -> set[str]:
    """Return the ids of those findings that have a hand-made script."""
    return {record.id for record in records if (FOLDER / record.id / SCRIPT).is_file()}


def read_records(root: Path | None = None) -> dict[str, FindingRecord]:
    """Return all records by id, sorted. `root`: their folder, if not Coldproof's own.

    Raises UsageError that names the faulty file.
    """
    found = (read_record(path) for path in sorted((root or FOLDER).glob(f"*/*/{RECORD}")))
    return {record.id: record for record in found}


def read_record(path: Path) -> FindingRecord:
    """Return the record of one folder. Raises UsageError."""
    try:
        seen = path.stat()
        return parsed(path, (seen.st_mtime_ns, seen.st_size))
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem}") from problem


@functools.cache
def parsed(path: Path, _stamp: tuple[int, int]) -> FindingRecord:
    """Return the record of one folder. A run reads all of them several times, a tenth of a second each time.

    `_stamp`: time of change and size of the file, which is read again when they change. Raises UsageError.
    """
    name = f"{path.parent.parent.name}/{path.parent.name}"
    try:
        record = msgspec.convert(read_toml(path), FindingRecord)
    except (OSError, msgspec.MsgspecError) as problem:
        raise UsageError(f"cannot read {path}: {problem}") from problem
    if contradiction := inconsistent(record, name):
        raise UsageError(f"cannot use {path}: {contradiction}")
    return msgspec.structs.replace(record, id=name)


def inconsistent(record: FindingRecord, name: str) -> str:
    """Return what contradicts itself in a record, as text; empty if nothing does."""
    if record.id:
        return "its folder is its id: leave out `id`"
    if NAME.fullmatch(name) is None or record.engine != name.split("/")[0]:
        return (
            f"the folder {name!r} is not the engine {record.engine!r} with a name of small letters, digits and dashes"
        )
    return next((words for broken, words in rules_of_status(record) if broken), "")


def rules_of_status(record: FindingRecord) -> Iterator[tuple[bool, str]]:
    """Yield what the status of a record requires: whether the record breaks it, and in words."""
    status, queries = record.status, record.search.queries if record.search else []
    yield (
        (record.fixed_in is not None) != (status is FindingStatus.FIXED),
        "a fixed finding names the release in `fixed_in`, and no other finding does",
    )
    yield (
        status is FindingStatus.NEW and len(set(queries)) < MIN_QUERIES,
        f"a new finding needs a [search] of at least {MIN_QUERIES} queries; without one it is `not searched`",
    )
    yield (
        not record.may_act_in(record.signature),
        "what a cause acts `only_with` are parts of its signature",
    )
    yield (
        status in UNREPORTED and bool(record.upstream),
        f"a finding with a public report in `upstream` is not `{status.value}`",
    )
    yield (
        status in (FindingStatus.REPORTED, FindingStatus.PULL_REQUEST) and not record.upstream,
        "a finding that is reported, or has a pull request, needs the link in `upstream`",
    )
    yield (
        (record.with_pull_request is not None) != (status is FindingStatus.PULL_REQUEST),
        "a finding with an open pull request says in `with_pull_request` whether its case passes, no other does",
    )
    yield (
        (record.contract is None) == (status in INTENDED),
        "a finding by design, or a documented limitation, quotes the sentence in [contract], and no other finding does",
    )


def read_finding(record: FindingRecord, root: Path | None = None) -> StoredFinding:
    """Return a finding with its case. Raises UsageError if the case is not what the record says."""
    folder = (root or FOLDER) / record.id
    if record.no_case is not None:
        if (folder / CASE).exists():
            raise UsageError(f"{folder} has a case, but its record says why there is none")
        return StoredFinding(record=record, folder=folder, case=None, workload=None)
    case, workload = load_case(folder / CASE, follow=True)
    said = (record.requirement, record.failure_class, record.signature, record.found.adapter, record.found.cell)
    if said != (case.requirement, case.failure_class, case.signature, case.engine, case.cell):
        raise UsageError(
            f"{folder / CASE} is not the case of its record: requirement, class, signature, adapter or cell"
        )
    return StoredFinding(record=record, folder=folder, case=case, workload=workload)


def read_findings(records: Iterable[FindingRecord], root: Path | None = None) -> list[StoredFinding]:
    """Return the findings with these records, with their cases. Raises UsageError."""
    return [read_finding(record, root) for record in records]


def waivers_of(engine: str) -> Path | None:
    """Return the file with the known issues of an engine's folder; None if it has none."""
    path = ENGINES / engine / "known_issues.toml"
    return path if path.is_file() else None


def is_regression(record: FindingRecord, version: str | None) -> bool:
    """Return whether a finding is recorded as fixed in this release or an earlier one, so that it must not fail."""
    if record.fixed_in is None or version is None:
        return False
    try:
        return Version(version) >= Version(record.fixed_in)
    except InvalidVersion:
        return False
