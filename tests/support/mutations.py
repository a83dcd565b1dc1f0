"""Mutates files that Coldproof reads. Each mutation follows from a number, so that a failure can be repeated.

JSON is changed at one place of its structure, by a value of another type, size or nesting. Any file is also changed
byte by byte, or replaced by something that is not a regular file.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

RAW = "raw literal "  # a string that is written without its quotes
DEEP = 3000
LITERALS = (
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 30,
    "9" * 6000,
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 0.5, -1e308, 1e308, 2**31, 2**53, 2**63 - 1, -(2**63)),
    *(
        "",
        "\x00",
        "\n",
        "../../etc/passwd",
        "/etc/passwd",
        "x" * 100_000,
        "\ud7ff\u202e\x1b[31m",
        "2026-13-45",
        "1/300000000",
    ),
    *([], {}, [[]], [None], {"": None}, [0] * 5000, "3/2", "-", "CONFORMS"),
    *(RAW + str(number) for number in range(len(LITERALS))),
)
Mutation = Callable[[bytes, Random], bytes]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of plain data with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def written(value: Any) -> bytes:
    """Return JSON on one line, with raw literals written without quotes."""
    text = json.dumps(value, separators=(",", ":"))
    for number, literal in enumerate(LITERALS):
        text = text.replace(json.dumps(RAW + str(number)), literal)
    return text.encode()


def mutated_value(raw: bytes, draw: Random) -> bytes:
    """Return the JSON of a value in which one place is replaced, removed or repeated."""
    value = json.loads(raw)
    found = list(places(value))
    if not found:
        return raw
    # Places near the root are few, and decide most.
    near = found[: max(1, len(found) // 50)]
    container, key = draw.choice(near if draw.random() < 0.3 else found)
    match draw.randrange(8):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.extend([container[key]] * draw.choice((1, 30, 500)))
        case 1:
            container[f"{key} "] = container.pop(key)
        case 2 if isinstance(container, dict):
            marked = {**container, "same key twice": container[key]}
            container.clear()
            container.update(marked)
            return written(value).replace(b'"same key twice"', json.dumps(key).encode())
        case _:
            container[key] = draw.choice(VALUES)
    return written(value)


def mutated_json(raw: bytes, draw: Random) -> bytes:
    """Return a JSON file changed at one place of its structure."""
    return mutated_value(raw, draw) + b"\n"


def mutated_lines(raw: bytes, draw: Random) -> bytes:
    """Return an event log with one line changed, repeated, moved or removed."""
    lines = raw.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    match draw.randrange(10):
        case 0:
            del lines[place]
        case 1:
            lines[place:place] = [lines[place]] * draw.choice((1, 40))
        case 2:
            lines.insert(0, lines.pop(place))
        case _:
            lines[place] = mutated_value(lines[place], draw) + b"\n"
    return b"".join(lines)


def mutated_bytes(raw: bytes, draw: Random) -> bytes:
    """Return a file with some bytes changed, which may no longer be UTF-8."""
    place = draw.randrange(len(raw) + 1)
    end = min(len(raw), place + draw.choice((0, 1, 8, 400)))
    match draw.randrange(5):
        case 0:
            return raw[:place]
        case 1:
            return (
                raw[:place] + draw.choice((b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\n", b'"', b"\\", b"{")) + raw[end:]
            )
        case 2:
            return draw.choice(
                (b"", b"\x00" * 100, b"\xef\xbb\xbf" + raw, b"null\n", b"[]\n", b"{}\n", b"7\n", raw + raw)
            )
        case 3:
            return raw[:place] + draw.randbytes(draw.choice((1, 20))) + raw[end:]
    return raw[:place] + raw[end:]


def mutated_toml(raw: bytes, draw: Random) -> bytes:
    """Return a TOML file with one value replaced."""
    values = (
        b"[]",
        b"{}",
        b"nan",
        b"inf",
        b"1" * 5000,
        b'"\\u0000"',
        b"''",
        b"1979-05-27",
        b"{a = " * 500,
        b"[" * 3000,
    )
    lines = raw.splitlines(keepends=True)
    place = draw.choice([number for number, line in enumerate(lines) if b"=" in line])
    key, _, _ = lines[place].partition(b"=")
    lines[place] = key + b"= " + draw.choice(values) + b"\n"
    if draw.random() < 0.2:
        lines.insert(
            place, draw.choice((lines[place], b"[[issue]]\n", b"[" + b"a." * 3000 + b"a]\n", b"= 1\n", b"x = 1\n"))
        )
    return b"".join(lines)


def no_file(path: Path, draw: Random) -> None:
    """Replace a file by something that is not a regular file."""
    path.unlink()
    match draw.randrange(5):
        case 0:
            path.symlink_to("/etc/passwd")
        case 1:
            path.symlink_to(path.name)
        case 2:
            os.mkfifo(path)
        case 3:
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")


BY_KIND: dict[str, Mutation] = {".json": mutated_json, ".ndjson": mutated_lines, ".toml": mutated_toml}


def mutate(path: Path, draw: Random) -> None:
    """Change a file in place."""
    chosen = draw.random()
    if chosen < 0.06:
        no_file(path, draw)
        return
    raw = path.read_bytes()
    path.write_bytes(mutated_bytes(raw, draw) if chosen < 0.25 else BY_KIND[path.suffix](raw, draw))


def fresh(folder: Path, of: Path) -> Path:
    """Return a copy of a folder in place of an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(of, folder, symlinks=True))
