"""`python -m harness.qualify.freeze`: write the list of this version's requirements, or `--check` it.

Exit code: 0 the list is as the suites are, or was written; 1 it is not; 4 usage.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tomllib
from collections.abc import Sequence

import pytest

from harness.options import UsageError
from harness.qualify.declared import declared
from harness.qualify.frozen import FrozenList, differences, encode, path_of, read_frozen
from harness.qualify.sources import ROOT
from reports.command import USAGE, Parser

DIFFERS = 1
COLLECT = ("--collect-only", "-q", "-p", "no:cacheprovider", "--engine-url", "http://127.0.0.1:9")  # one cell


class Collector:
    """A plugin of pytest's that keeps what was collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All tests are known."""
        self.items = list(session.items)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = Parser(prog="python -m harness.qualify.freeze", description="Freezes this version's requirements.")
    parser.add_argument("--check", action="store_true", help="write nothing: say what differs")
    parser.add_argument("--again", action="store_true", help="write over the list: before the version is released")
    options = parser.parse_args(arguments)
    today = of_today(version())
    target = path_of(today.version)
    if not options.check and (options.again or not target.exists()):
        return write(today)
    try:
        found = differences(read_frozen(today.version)[0], today)
    except UsageError as problem:
        return say(f"{problem}: python -m harness.qualify.freeze", code=DIFFERS)
    if not found:
        return say(f"the requirements of version {today.version} are as they were frozen", code=0)
    for line in found:
        say(line, code=DIFFERS)
    return say(
        f"version {today.version} is frozen otherwise: raise the version in pyproject.toml and freeze that one, or, "
        "before it is released, python -m harness.qualify.freeze --again",
        code=DIFFERS,
    )


def version() -> str:
    """The project's version. Exits with 4 outside a checkout."""
    try:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
        sys.exit(say(f"requirements are frozen in a checkout: {problem}", code=USAGE))


def of_today(of: str) -> FrozenList:
    """The list as the suites are now. Exits with 4 where they cannot be collected."""
    collector, said = Collector(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main([str(ROOT / "suites"), f"--rootdir={ROOT}", *COLLECT], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(say(f"the suites cannot be collected:\n{said.getvalue()}", code=USAGE))
    return declared(collector.items, of)


def write(frozen: FrozenList) -> int:
    """Write a list."""
    path_of(frozen.version).write_bytes(encode(frozen))
    return say(f"{len(frozen.tests)} tests and {len(frozen.cells)} cells are version {frozen.version}", code=0)


def say(line: str, *, code: int) -> int:
    """Tell a person; returns the exit code."""
    (sys.stderr if code else sys.stdout).write(line + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
