"""What the commands of `reports` share: how arguments are refused, a stored run is read and a failure is told.

Whatever is wrong with what a command is given is one line on stderr and exit code 4, never a trace; what cannot be
written is exit code 3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from reports.schema import SCHEMA_VERSION, Results, read_results
from reports.text import one_line
from reports.write import write_text

FAILED = 3
USAGE = 4
_STDOUT = 1
_UNREADABLE = (OSError, msgspec.DecodeError, UnicodeError)


class Parser(argparse.ArgumentParser):
    """Refuses wrong arguments in one line, with exit code 4 and not argparse's 2, which is pytest's own."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit."""
        self.exit(USAGE, f"{self.prog}: {one_line(message)}\n")


class Refusal(Exception):
    """The one line and the exit code with which a command ends early."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


class _Versioned(msgspec.Struct):
    """Only the version: a file of another one is said to be that, not to lack some field."""

    schema_version: int


def run(work: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Do a command's work; returns its exit code. A refusal is one line on stderr."""
    try:
        return work(options)
    except Refusal as refusal:
        sys.stderr.write(f"python -m reports: {one_line(str(refusal))}\n")
        return refusal.code


def results_file(source: Path) -> Path:
    """The results.json that an argument means: itself, or the one in that report folder."""
    return source / "results.json" if source.is_dir() else source


def loaded(source: Path) -> Results:
    """A stored run, by its results.json or its report folder. Raises Refusal, for another version of the schema too."""
    file = results_file(source)
    try:
        if file != source and not file.exists():
            raise msgspec.DecodeError("the folder has no results.json")
        return _read(file)
    except _UNREADABLE as problem:
        raise Refusal(USAGE, f"cannot read {source}: {_reason(problem)}") from problem


def write(target: Path, content: str) -> None:
    """Write a file whole. Raises Refusal."""
    try:
        write_text(target, content)
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write {target}: {_reason(problem)}") from problem


def tell(content: str) -> None:
    """UTF-8 on stdout whatever the locale is. Past Python's own stream, whose buffer would fail again at the end."""
    try:
        with open(_STDOUT, "wb", closefd=False) as out:
            out.write(content.encode())
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write to stdout: {_reason(problem)}") from problem


def _read(file: Path) -> Results:
    try:
        version = msgspec.json.decode(file.read_bytes(), type=_Versioned).schema_version
        if version == SCHEMA_VERSION:
            return read_results(file)
    except msgspec.ValidationError as problem:
        raise msgspec.ValidationError(f"it is no results.json: {problem}") from problem
    raise msgspec.ValidationError(f"its schema_version is {version}, this Coldproof reads {SCHEMA_VERSION}")


def _reason(problem: Exception) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
