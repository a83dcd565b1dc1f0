"""Short scripts and regression tests of findings show their bugs on the installed engines, and none with a repair."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.finding_scripts import Scripts

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.repair import installed
from coldproof.harness.case.finding_records import FOLDER, REGRESSION, SCRIPT, read_records
from coldproof.harness.case.repairs import read_repairs, repairing
from coldproof.harness.schema.findings import FindingRecord

RECORDS, REPAIRS = read_records(), read_repairs()


@pytest.fixture(scope="module")
def scripts(request: pytest.FixtureRequest) -> Iterator[Scripts]:
    """Yield what runs the scripts of an engine."""
    running = Scripts(request.param)
    yield running
    running.close()


def is_installed(record: FindingRecord) -> bool:
    """Return whether the engine of a finding is installed. One that Coldproof only attaches to has its own name."""
    spec = ENGINES[record.found.adapter]
    return spec.installed and (spec.start is not None or installed(record.engine))


def cases(file: str) -> list[object]:
    """Return the parameters of a test: the engine, and the name of a finding that has such a file."""
    found = []
    for name in ("/".join(path.parts[-3:-1]) for path in sorted(FOLDER.glob(f"*/*/{file}"))):
        missing = pytest.mark.skipif(not is_installed(RECORDS[name]), reason="not installed")
        marks = [pytest.mark.engine, pytest.mark.nightly, missing]
        found.append(pytest.param(name.split("/")[0], name, marks=marks, id=name))
    return found


@pytest.mark.parametrize(("scripts", "name"), cases(SCRIPT), indirect=["scripts"])
def test_a_script_shows_its_bug_and_none_with_the_repair(scripts: Scripts, name: str, tmp_path: Path) -> None:
    """Its exit code is 1, with a word of its own on what it expects, and 0 with the repair if there is one."""
    repair = repairing(name, REPAIRS.values())
    shipped = scripts.run(FOLDER / name / SCRIPT, tmp_path / "shipped")
    assert shipped.code == 1, shipped.output
    assert "expected" in shipped.output
    if repair is not None:
        repaired = scripts.run(FOLDER / name / SCRIPT, tmp_path / "repaired", repair.path)
        assert repaired.code == 0, repaired.output


@pytest.mark.parametrize(("scripts", "name"), cases(REGRESSION), indirect=["scripts"])
def test_a_regression_test_fails_without_the_repair_and_passes_with_it(
    scripts: Scripts, name: str, tmp_path: Path
) -> None:
    """It fails by an assertion, not because it cannot run."""
    repair = repairing(name, REPAIRS.values())
    assert repair is not None
    shipped = scripts.run(FOLDER / name / REGRESSION, tmp_path / "shipped")
    assert shipped.code == 1, shipped.output
    assert "AssertionError" in shipped.output
    assert re.search(r"^\d+ failed(?!.* error)", shipped.output, re.MULTILINE), shipped.output
    repaired = scripts.run(FOLDER / name / REGRESSION, tmp_path / "repaired", repair.path)
    assert repaired.code == 0, repaired.output
