"""What the commands of `reports` share: how arguments are refused, a stored run is read and a failure is told.

Whatever is wrong with what a command is given is one line on stderr and exit code 4, never a trace; what cannot be
written is exit code 3.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from reports.schema import SCHEMA_VERSION, Results, read_results
from reports.text import one_line

FAILED = 3
USAGE = 4
UNREADABLE = (OSError, msgspec.DecodeError, UnicodeError)  # all that `read` raises


class Parser(argparse.ArgumentParser):
    """Refuses wrong arguments in one line, with exit code 4 and not argparse's 2, which is pytest's own."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit."""
        self.exit(USAGE, f"{self.prog}: {one_line(message)}\n")


class _Versioned(msgspec.Struct):
    """Only the version: a file of another one is said to be that, not to lack some field."""

    schema_version: int


def read(source: Path) -> Results:
    """A stored run. Raises one of UNREADABLE, also for another version of the schema than ours."""
    version = msgspec.json.decode(source.read_bytes(), type=_Versioned).schema_version
    if version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"its schema_version is {version}, this Coldproof reads {SCHEMA_VERSION}")
    return read_results(source)


def reason(problem: Exception) -> str:
    """Why a file could not be read or written."""
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


def fail(code: int, line: str) -> int:
    """Say one line on stderr; returns the exit code."""
    sys.stderr.write(f"python -m reports: {one_line(line)}\n")
    return code
