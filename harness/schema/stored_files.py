"""Reads files that may come from anybody: bounded in size, nesting and numbers, and only regular files.

Invariant: whatever a file contains, reading it ends soon, with a value or with `UnreadableFile`. No link is followed
unless the user named the file, so that somebody else's folder cannot make us read, publish or wait for other files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

MEGABYTE = 2**20
MOST_JSON = 256 * MEGABYTE  # of results.json, which has all cases of a run
MOST_TOML = 4 * MEGABYTE
MOST_LINE = 256 * MEGABYTE  # of events.ndjson: an example has every token of its workload
MOST_LINES = 50_000_000
MOST_DEPTH = 100  # of nested values; ours have about fifteen
MOST_FILES = 100_000  # in a folder
# Errors that values of the right type may raise where nobody expects them: they may contradict each other in any way.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_DIGITS = re.compile(rb"[0-9]{19}")
_LONG_NUMBER = re.compile(rb"(?:^|[\[:,\s])(-?[0-9]{19,})")
_INTEGERS = range(-(2**63), 2**64)  # what is written again: a digest may have 20 digits

Value = TypeVar("Value")


class UnreadableFile(msgspec.DecodeError):
    """A file that is not what it must be. The message has the reason, on one line, without the file's path.

    It is an error of decoding, so that whoever handles malformed JSON handles it.
    """


@contextlib.contextmanager
def opened(path: Path, *, follow: bool = False) -> Iterator[IO[bytes]]:
    """Open a regular file. `follow`: it may be a link, because the user named it. Raises UnreadableFile or OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)  # without O_NONBLOCK, it would wait for the writer of a FIFO
    except ValueError as problem:  # a path with NUL
        raise UnreadableFile("its path is no path of a file") from problem
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise UnreadableFile("it is a symbolic link") from problem
        if problem.errno == errno.ENXIO:
            raise UnreadableFile("it is not a regular file") from problem
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UnreadableFile("it is not a regular file")
    with os.fdopen(handle, "rb") as file:
        yield file


def read_bytes(path: Path, *, most: int = MOST_JSON, follow: bool = False) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises UnreadableFile or OSError."""
    with opened(path, follow=follow) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableFile(f"it has more than {most // MEGABYTE} MB")
    return content


def read_json(path: Path, kind: type[Value], *, most: int = MOST_JSON, follow: bool = False) -> Value:
    """Return a file's JSON as a value of a type. Raises UnreadableFile, msgspec.ValidationError or OSError."""
    return decode(read_bytes(path, most=most, follow=follow), kind)


def decode(raw: bytes, kind: type[Value]) -> Value:
    """Return JSON as a value of a type that bounds its nesting. Raises UnreadableFile or msgspec.ValidationError."""
    # A digest in a string is no number: strings are taken away, but only from what has so many digits.
    if _DIGITS.search(raw) and not all(map(fits, _LONG_NUMBER.findall(_STRING.sub(b'""', raw)))):
        raise UnreadableFile("it has an integer with more than 64 bits")
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        raise
    except RecursionError as problem:
        raise UnreadableFile("its values are nested too deeply") from problem
    except ValueError as problem:  # UTF-8 that is none
        raise UnreadableFile(f"it is not JSON: {problem}") from problem


def fits(digits: bytes) -> bool:
    """Return whether an integer has at most 64 bits."""
    return len(digits) <= len(str(2**64)) and int(digits) in _INTEGERS


def decode_object(raw: bytes) -> dict[str, Any]:
    """Return a JSON object as plain data. Raises UnreadableFile or msgspec.ValidationError."""
    value = decode(raw, dict[str, Any])
    check_depth(value)
    return value


def check_depth(value: object) -> None:
    """Raise UnreadableFile for plain data that is nested too deeply for those who walk through it."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [inner for outer in level for inner in parts_of(outer)]
        if not level:
            return
    raise UnreadableFile("its values are nested too deeply")


def parts_of(value: object) -> Iterator[object]:
    """Yield the containers directly in a container."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    yield from (one for one in values if isinstance(one, dict | list | tuple))


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file that the user named; it may be a link. Raises UnreadableFile or OSError."""
    try:
        value = tomllib.loads(read_bytes(path, most=MOST_TOML, follow=True).decode())
    except RecursionError as problem:
        raise UnreadableFile("its values are nested too deeply") from problem
    except msgspec.DecodeError:
        raise
    except ValueError as problem:  # of tomllib, of UTF-8, and of a number or date that Python does not have
        raise UnreadableFile(str(problem)) from problem
    check_depth(value)
    return value


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file one by one, with their ends. Raises UnreadableFile or OSError."""
    with opened(path) as file:
        for number in range(1, MOST_LINES + 2):
            line = file.readline(MOST_LINE + 1)
            if not line:
                return
            if len(line) > MOST_LINE:
                raise UnreadableFile(f"line {number} has more than {MOST_LINE // MEGABYTE} MB")
            if number > MOST_LINES:
                raise UnreadableFile(f"it has more than {MOST_LINES:,} lines")
            yield line


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, in order, with its path from the folder; nothing if there is no folder.

    Raises UnreadableFile, which names it, for what is neither a folder nor a regular file: a link, a device, a FIFO.
    """
    count = 0
    if not folder.is_dir():
        return
    for place, folders, names in os.walk(folder, onerror=raise_error):
        folders.sort()
        for name in sorted([*folders, *names]):
            path = Path(place, name)
            count += 1
            kind = path.lstat().st_mode
            shown = path.relative_to(folder)
            if stat.S_ISLNK(kind):
                raise UnreadableFile(f"{shown.as_posix()} is a symbolic link")
            if stat.S_ISREG(kind):
                yield shown
            elif not stat.S_ISDIR(kind):
                raise UnreadableFile(f"{shown.as_posix()} is not a regular file")
            if count > MOST_FILES:
                raise UnreadableFile(f"it has more than {MOST_FILES:,} files")


def check_files_below(folder: Path) -> None:
    """Raise UnreadableFile as `files_below` does, before anything below the folder is read."""
    for _ in files_below(folder):
        pass


def raise_error(problem: OSError) -> None:
    """Raise the problem: a folder that cannot be listed is not an empty one."""
    raise problem


def copy_file(path: Path, to: Path) -> None:
    """Copy a regular file's content to a new file. Raises UnreadableFile or OSError."""
    with opened(path) as source, to.open("xb") as target:
        shutil.copyfileobj(source, target)


def copy_folder(folder: Path, to: Path) -> None:
    """Copy a folder with all its files to a new folder. Raises UnreadableFile or OSError."""
    to.mkdir(parents=True)
    for name in list(files_below(folder)):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(folder / name, to / name)
