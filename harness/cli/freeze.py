"""`coldproof freeze`: write the list of this version's requirements, or `--check` it.

Exit code: 0 the list matches the suites, or was written; 1 it does not match; 4 wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tomllib

import pytest

from coldproof.harness.cli.io import Subcommand, argument
from coldproof.harness.options import UsageError
from coldproof.harness.release.requirements.collected import collected_list
from coldproof.harness.release.requirements.frozen import FrozenList, differences, encode, list_path, read_frozen
from coldproof.harness.release.run.sources import ROOT

DIFFERS = 1
COLLECT = ("--collect-only", "-q", "-p", "no:cacheprovider", "--engine-url", "http://127.0.0.1:9")  # one cell


class Collector:
    """A pytest plugin that keeps the collected tests."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the collected tests."""
        self.items = list(session.items)


def run(options: argparse.Namespace) -> int:
    """Write or check the list, and return the exit code. Raises UsageError."""
    current = list_of_suites(version())
    target = list_path(current.version)
    if not options.check and (options.again or not target.exists()):
        return write(current)
    try:
        found = differences(read_frozen(current.version)[0], current)
    except UsageError as problem:
        return say(f"{problem}; run coldproof freeze", code=DIFFERS)
    if not found:
        return say(f"the requirements match the frozen list of version {current.version}", code=0)
    for one in found:
        say(str(one), code=DIFFERS)
    return say(
        f"the requirements differ from the frozen list of version {current.version}: raise the version in "
        "pyproject.toml and run coldproof freeze; if this version is not released yet, run coldproof freeze --again",
        code=DIFFERS,
    )


FREEZE = Subcommand(
    "write the list of this version's requirements, or check it",
    run,
    argument("--check", action="store_true", help="write nothing; print the differences"),
    argument("--again", action="store_true", help="overwrite the list; only before the version is released"),
)


def version() -> str:
    """Return the project's version. Raises UsageError outside a checkout."""
    try:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"coldproof freeze requires a checkout: {problem}") from problem


def list_of_suites(of: str) -> FrozenList:
    """Return the list of the current suites. Raises UsageError if they cannot be collected."""
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main([str(ROOT / "suites"), f"--rootdir={ROOT}", *COLLECT], plugins=[collector])
    if code != pytest.ExitCode.OK:
        raise UsageError(f"cannot collect the suites: {said.getvalue()}")
    return collected_list(collector.items, of)


def write(frozen: FrozenList) -> int:
    """Write the list and return exit code 0."""
    list_path(frozen.version).write_bytes(encode(frozen))
    return say(
        f"{len(frozen.tests)} tests and {len(frozen.cells)} cells are frozen as version {frozen.version}", code=0
    )


def say(line: str, *, code: int) -> int:
    """Write a line, to stderr if `code` is not 0. Returns `code`."""
    (sys.stderr if code else sys.stdout).write(line + "\n")
    return code
