"""A test that is skipped in every environment fails the test command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

SCRIPT = ROOT / "ci" / "every_test_ran.py"
SUITE = '<testsuites><testsuite name="pytest">{}</testsuite></testsuites>'
RAN = '<testcase classname="tests.a" name="{}"/>'
SKIPPED = '<testcase classname="tests.a" name="{}"><skipped message="no engine"/></testcase>'


def said(folder: Path, *environments: tuple[str, ...]) -> tuple[int, str]:
    """Run the check on environments, each a list of test cases, and return its exit code and message."""
    files = []
    for number, cases in enumerate(environments):
        files.append(folder / f"{number}.xml")
        files[-1].write_text(SUITE.format("".join(cases)))
    command = [sys.executable, str(SCRIPT), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_what_one_environment_skips_another_may_run(tmp_path: Path) -> None:
    """It may run with any of its parameters."""
    first = (SKIPPED.format("test_x"), SKIPPED.format("test_y[vllm]"), RAN.format("test_z"))
    assert said(tmp_path, first, (RAN.format("test_x"), RAN.format("test_y[transformers]"))) == (0, "")


def test_what_all_skip_is_named(tmp_path: Path) -> None:
    """The message has the reason."""
    first, second = (SKIPPED.format("test_x"), SKIPPED.format("test_y[a]")), (RAN.format("test_x"),)
    assert said(tmp_path, first, second) == (1, "skipped in every environment: tests.a::test_y: no engine\n")


def test_the_group_of_a_test_is_no_part_of_its_name(tmp_path: Path) -> None:
    """pytest-xdist appends the group to the name."""
    first = (SKIPPED.format("test_x@tests/a.py"), SKIPPED.format("test_y[vllm]@the contract of vllm"))
    assert said(tmp_path, first, (RAN.format("test_x"), RAN.format("test_y[transformers]"))) == (0, "")


def test_an_expected_failure_ran(tmp_path: Path) -> None:
    """pytest reports it as skipped, too."""
    failed = RAN.replace("/>", '><skipped type="pytest.xfail" message="known"/></testcase>').format("test_x")
    assert said(tmp_path, (failed,)) == (0, "")


def test_without_files_it_prints_its_usage(tmp_path: Path) -> None:
    """It is no success if nothing was checked."""
    assert said(tmp_path) == (4, "usage: python ci/every_test_ran.py JUNIT.xml ...\n")
