"""`coldproof attribute`: a case belongs to the cause whose repair alone makes it vanish."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from support import report_samples

from coldproof.harness.case.attribution import Basis, by_signature, in_order_of_likeness
from coldproof.harness.case.finding_records import FOLDER, read_records
from coldproof.harness.case.repairs import KNOWN, NONE
from coldproof.harness.cli import attribute
from coldproof.harness.cli.attribute import by_repairs
from coldproof.harness.cli.main import main
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord, ReplayResult

FAILS, PASSES, OTHERWISE, NOT_RUN = (
    ReplayResult.FAILS,
    ReplayResult.PASSES,
    ReplayResult.OTHERWISE,
    ReplayResult.NOT_RUN,
)
CASE = report_samples.case("LORA-3-1")
CONTENTS = FOLDER / "vllm" / "adapter-key-lacks-the-contents" / "case.json"
FIRST, SECOND = "vllm/one", "vllm/two"


def replaying(results: Mapping[str, ReplayResult | list[ReplayResult]]) -> Callable[[str], ReplayResult]:
    """Return a replay with these results by repair; a list has those of one replay after the other."""

    def replay(repairs: str) -> ReplayResult:
        found = results.get(repairs, FAILS)
        return found.pop(0) if isinstance(found, list) else found

    return replay


@pytest.mark.parametrize(
    ("results", "basis", "finding"),
    [
        ({KNOWN: PASSES, SECOND: PASSES}, Basis.REPAIR, SECOND),
        ({KNOWN: PASSES, FIRST: OTHERWISE, SECOND: PASSES}, Basis.REPAIR, SECOND),
        ({KNOWN: FAILS}, Basis.NEW, ""),
        ({KNOWN: PASSES}, Basis.NEW, ""),  # gone with all together, and with none alone
        ({KNOWN: OTHERWISE}, Basis.OTHERWISE, ""),
        ({NONE: PASSES, KNOWN: PASSES, FIRST: PASSES}, Basis.GONE, ""),
        ({NONE: OTHERWISE, KNOWN: PASSES, FIRST: PASSES}, Basis.GONE, ""),
        ({NONE: NOT_RUN}, Basis.NOT_RUN, ""),
        ({KNOWN: NOT_RUN}, Basis.NOT_RUN, ""),
        ({KNOWN: PASSES, FIRST: PASSES, NONE: [FAILS, PASSES, FAILS]}, Basis.NEW, ""),  # a case that takes luck
    ],
)
def test_only_a_repair_that_ends_the_case_alone_is_its_cause(
    results: Mapping[str, ReplayResult | list[ReplayResult]], basis: Basis, finding: str
) -> None:
    """It must fail without, pass with one repair, and fail without again."""
    found = by_repairs(CASE, [FIRST, SECOND], replaying(results))
    assert (found.basis, found.finding, found.is_known) == (basis, finding, bool(finding))


def record(name: str, **changes: str) -> FindingRecord:
    """Return a record about the requirement, class and signature of the case, with changes."""
    usual = {"id": name, "requirement": CASE.requirement, "signature": CASE.signature}
    return msgspec.structs.replace(
        next(iter(read_records().values())), failure_class=CASE.failure_class, **{**usual, **changes}
    )


def test_the_likeliest_findings_come_first() -> None:
    """The class counts more than the requirement, and both more than parts of the signature."""
    same, part, other = record("e/same"), record("e/part", signature="x; y"), record("e/other", requirement="MM-1")
    assert in_order_of_likeness(CASE, [other, part, same]) == [same, part, other]


def test_an_engine_without_repairs_leaves_the_signature() -> None:
    """Two findings with one signature say nothing, and another signature neither."""
    one, two = record("e/one"), record("e/two")
    found = by_signature(CASE, [one], "it is written in C++")
    assert (found.basis, found.finding) == (Basis.SIGNATURE, "e/one")
    assert "which another cause may have, too" in found.words
    assert [by_signature(CASE, records, "").basis for records in ([one, two], [record("e/x", signature="x")], [])] == [
        Basis.NEW
    ] * 3


@pytest.mark.parametrize(
    ("result", "code", "said"), [(PASSES, 0, "vllm/"), (FAILS, 1, "no known cause"), (NOT_RUN, 3, "not run")]
)
def test_each_case_has_a_line_and_the_exit_code_sums_them_up(
    result: ReplayResult, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0: each belongs to a known cause; 1: one does not; 3: one came to no verdict."""

    def replayed(_case: Case, _path: Path, _folder: Path, repairs: str) -> ReplayResult:
        return FAILS if repairs == NONE else result

    monkeypatch.setattr(attribute, "replayed", replayed)
    assert main(["attribute", str(CONTENTS)]) == code
    (line,) = capsys.readouterr().out.splitlines()
    assert said in line


@pytest.mark.engine
@pytest.mark.nightly
def test_a_case_of_vllm_belongs_to_its_finding(tmp_path: Path) -> None:
    """The replays run on the real engine, with the worker of the case."""
    command = [sys.executable, "-m", "coldproof", "attribute", str(CONTENTS), "--report-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("LORA-3-c0bf510a: vllm/adapter-key-lacks-the-contents: ")
