"""Shared by all subcommands: declares them, refuses wrong input, reads stored runs and writes output.

Wrong usage or unreadable input gives one line on stderr, `coldproof COMMAND: PROBLEM`, and exit code 4, never a
traceback. A file that cannot be written gives exit code 3.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from coldproof.harness.schema.case import SCHEMA_VERSION
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.stored_files import MALFORMED, read_json
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import FolderRefused, OwnFolder
from coldproof.reports.format.text import one_line, visible

FAILED = 3
USAGE = 4
_STDOUT = 1
Argument = Callable[[argparse.ArgumentParser], object]


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


class Subcommand:
    """A subcommand: `run` does the work and returns the exit code. It raises Refusal or UsageError.

    `described`: arguments that are declared for --help only, because pytest reads them.
    """

    def __init__(
        self,
        purpose: str,
        run: Callable[[argparse.Namespace], int],
        *arguments: Argument,
        described: Sequence[Argument] = (),
    ) -> None:
        self.purpose, self.run, self.arguments, self.described = purpose, run, arguments, described


class _Versioned(msgspec.Struct):
    """Only the version, so that a file of another version is reported as that and not as incomplete."""

    schema_version: int


def argument(*names: str, **settings: Any) -> Argument:
    """Return an argument of a subcommand, with the parameters of argparse's `add_argument`."""
    return lambda parser: parser.add_argument(*names, **settings)


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number, not less than `least`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return int(text)

    return read


def out_folder(default: str) -> Argument:
    """Return the option --out of a subcommand that has a default folder."""
    text = f"folder for the results (default: {default})"
    return argument("--out", type=Path, default=Path(default), metavar="DIR", help=text)


def say(line: str) -> None:
    """Write a line to stdout and flush it."""
    sys.stdout.write(f"{visible(line)}\n")
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
        return _read(file, follow=file == source)
    except (OSError, msgspec.DecodeError, UnicodeError) as problem:
        raise Refusal(USAGE, f"cannot read {source}: {reason_of(problem)}") from problem


def write(target: Path, content: str) -> None:
    """Write a file atomically. Raises Refusal."""
    with writing(target):
        write_text(target, content)


def write_stdout(content: str) -> None:
    """Write UTF-8 to stdout in any locale. Bypasses sys.stdout: after an error its buffer would fail again at exit."""
    with writing("to stdout"), open(_STDOUT, "wb", closefd=False) as out:
        out.write(content.encode())


@contextlib.contextmanager
def writing(target: Path | str) -> Iterator[None]:
    """Raise Refusal if the block cannot write `target`."""
    try:
        yield
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write {target}: {reason_of(problem)}") from problem


def added_to(folder: Path) -> AbstractContextManager[None]:
    """Let the block add files of ours to a folder, or write its own again. Raises Refusal if a run writes there."""
    return _held(folder, OwnFolder.enter, "")


def own_folder(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder that is ours alone while the block writes into it. Raises Refusal for any other folder."""
    return _held(folder, OwnFolder.begin, "--out ")


@contextlib.contextmanager
def _held(folder: Path, opened: Callable[[Path], OwnFolder], option: str) -> Iterator[None]:
    with writing(folder):
        try:
            held = opened(folder)
        except FolderRefused as problem:
            raise Refusal(USAGE, f"{option}{problem}") from problem
        with contextlib.closing(held):
            yield


def _read(file: Path, *, follow: bool) -> Results:
    try:
        version = read_json(file, _Versioned, follow=follow).schema_version
        if version == SCHEMA_VERSION:
            return read_results(file, follow=follow)
    except msgspec.ValidationError as problem:
        raise msgspec.ValidationError(f"not a results.json file: {problem}") from problem
    raise msgspec.ValidationError(f"its schema_version is {version}; this Coldproof reads {SCHEMA_VERSION}")


@contextlib.contextmanager
def interpreting(source: Path | str) -> Iterator[None]:
    """Raise Refusal if the block cannot make sense of what it has read from `source`, a file or folder of anybody's.

    Its values have the types of the schema, but they may contradict each other in any way.
    """
    try:
        yield
    except OSError:
        raise
    except KeyError as problem:
        raise Refusal(USAGE, f"cannot read {source}: an event lacks {problem}") from problem
    except MALFORMED as problem:
        raise Refusal(USAGE, f"cannot read {source}: {reason_of(problem)}") from problem


def reason_of(problem: Exception) -> str:
    """Return the text of a problem without the file name, which the message already has."""
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)
