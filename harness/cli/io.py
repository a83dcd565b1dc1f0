"""Shared by all subcommands: refuses wrong input, reads stored runs and writes output.

Wrong usage or unreadable input gives one line on stderr, `coldproof COMMAND: PROBLEM`, and exit code 4, never a
traceback. A file that cannot be written gives exit code 3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from coldproof.harness.options import INVALID_DURATION, UsageError, parse_duration
from coldproof.reports.exports.write import write_text
from coldproof.reports.format.text import one_line
from coldproof.reports.schema.case import SCHEMA_VERSION
from coldproof.reports.schema.results import Results, read_results

FAILED = 3
USAGE = 4
_STDOUT = 1
_UNREADABLE = (OSError, msgspec.DecodeError, UnicodeError)


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line with exit code 4. argparse's code 2 means something else in pytest."""

    def error(self, message: str) -> NoReturn:
        """Write the problem and exit."""
        self.exit(USAGE, f"{self.prog}: {one_line(message)}\n")


class Refusal(Exception):
    """Ends a command early, with one line and an exit code."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


class _Versioned(msgspec.Struct):
    """Only the version, so that a file of another version is reported as that and not as incomplete."""

    schema_version: int


def execute(command: str, work: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Do a command's work and return its exit code. A refusal is one line on stderr."""
    try:
        return work(options)
    except Refusal as refusal:
        return refuse(command, str(refusal), code=refusal.code)
    except UsageError as problem:
        return refuse(command, str(problem), code=USAGE)


def refuse(command: str, problem: str, *, code: int) -> int:
    """Write the problem as one line on stderr, and return the exit code."""
    sys.stderr.write(f"coldproof {command}: {one_line(problem)}\n")
    return code


def time_span(text: str) -> float:
    """Return the seconds of an argument such as 90s. Raises UsageError."""
    seconds = parse_duration(text)
    if not seconds:
        raise UsageError(f"{text!r}: {INVALID_DURATION}")
    return seconds


def say(line: str) -> None:
    """Write a line to stdout and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def indented(lines: Sequence[str]) -> str:
    """Return the lines as text, all but the first indented."""
    return "\n  ".join(map(one_line, lines)) + "\n"


def results_file(source: Path) -> Path:
    """Return the path of results.json: `source` itself, or the file in that report folder."""
    return source / "results.json" if source.is_dir() else source


def loaded(source: Path) -> Results:
    """Read a stored run from its results.json or its report folder. Raises Refusal, also for another schema version."""
    file = results_file(source)
    try:
        if file != source and not file.exists():
            raise msgspec.DecodeError(
                "the folder has no results.json; `coldproof render` creates it from events.ndjson"
            )
        return _read(file)
    except _UNREADABLE as problem:
        raise Refusal(USAGE, f"cannot read {source}: {reason_of(problem)}") from problem


def write(target: Path, content: str) -> None:
    """Write a file atomically. Raises Refusal."""
    try:
        write_text(target, content)
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write {target}: {reason_of(problem)}") from problem


def write_stdout(content: str) -> None:
    """Write UTF-8 to stdout in any locale. Bypasses sys.stdout: after an error its buffer would fail again at exit."""
    try:
        with open(_STDOUT, "wb", closefd=False) as out:
            out.write(content.encode())
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write to stdout: {reason_of(problem)}") from problem


def _read(file: Path) -> Results:
    try:
        version = msgspec.json.decode(file.read_bytes(), type=_Versioned).schema_version
        if version == SCHEMA_VERSION:
            return read_results(file)
    except msgspec.ValidationError as problem:
        raise msgspec.ValidationError(f"not a results.json file: {problem}") from problem
    raise msgspec.ValidationError(f"its schema_version is {version}; this Coldproof reads {SCHEMA_VERSION}")


def reason_of(problem: Exception) -> str:
    """Return the text of a problem without the file name, which the message already has."""
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
