"""`coldproof freeze`: write the list of this version's requirements when it is released, or `--check` it.

Exit code: 0 the list matches the suites, or was written; 1 it does not match, or there is none to check; 4 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tomllib

from coldproof.harness.cli.io import Subcommand, argument
from coldproof.harness.options import UsageError
from coldproof.harness.release.requirements.frozen import FrozenList, differences, encode, list_path, read_frozen
from coldproof.harness.release.requirements.suites import list_of_suites
from coldproof.harness.release.run.sources import ROOT

DIFFERS = 1


def run(options: argparse.Namespace) -> int:
    """Write or check the list, and return the exit code. Raises UsageError."""
    current = list_of_suites(version())
    there = list_path(current.version).exists()
    if not options.check and not there:
        return write(current)
    if not there:
        said = "has no frozen list of requirements yet: `coldproof freeze` writes it at the release"
        return say(f"version {current.version} {said}", code=DIFFERS)
    found = differences(read_frozen(current.version)[0], current)
    if not found:
        return say(f"the requirements match the frozen list of version {current.version}", code=0)
    for one in found:
        say(str(one), code=DIFFERS)
    return say(
        f"the requirements differ from the frozen list of version {current.version}, which is released: raise the "
        "version in pyproject.toml",
        code=DIFFERS,
    )


FREEZE = Subcommand(
    "write the list of a version's requirements at its release, or check it",
    run,
    argument("--check", action="store_true", help="write nothing; print the differences"),
)


def version() -> str:
    """Return the project's version. Raises UsageError outside a checkout."""
    try:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"coldproof freeze requires a checkout: {problem}") from problem


def write(frozen: FrozenList) -> int:
    """Write the list and return exit code 0. Raises OSError."""
    path = list_path(frozen.version)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode(frozen))
    counts = f"{len(frozen.tests)} tests and {len(frozen.cells)} cells"
    return say(f"{counts} are frozen as version {frozen.version}: commit {path}", code=0)


def say(line: str, *, code: int) -> int:
    """Write a line, to stderr if `code` is not 0. Returns `code`."""
    (sys.stderr if code else sys.stdout).write(line + "\n")
    return code
