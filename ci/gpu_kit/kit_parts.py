"""Cuts a file into numbered parts and puts them together again. No byte is used whose digest is another than recorded.

A part begins with a line of JSON: its number, how many there are, its own SHA-256 and that of the whole file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

CHUNK = 1 << 20
KIND = "coldproof-gpu-kit"


class PartsError(ValueError):
    """The parts are not those of one whole file, with the reason."""


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def cut(whole: Path, folder: Path, *, size: int) -> list[Path]:
    """Write the parts of a file, each of at most `size` bytes with its header, and return their paths."""
    room = size - 512  # of the header
    if room <= 0:
        raise PartsError(f"a part of {size} bytes has no room for anything")
    digest, length, made = digest_of(whole), whole.stat().st_size, []
    count = max(1, -(-length // room))
    with whole.open("rb") as source:
        for number in range(1, count + 1):
            body = source.read(room)
            header = {
                "kind": KIND,
                "part": number,
                "of": count,
                "sha256": hashlib.sha256(body).hexdigest(),
                "whole": digest,
                "bytes": length,
            }
            path = folder / f"kit.part{number:02}"
            path.write_bytes(json.dumps(header).encode() + b"\n" + body)
            made.append(path)
    return made


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a part. Raises PartsError."""
    try:
        with path.open("rb") as source:
            header: dict[str, Any] = json.loads(source.readline(4096))
    except (OSError, ValueError) as problem:
        raise PartsError(f"{path} is no part of a kit: {problem}") from problem
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise PartsError(f"{path} is no part of a kit")
    return header


def whole_digest(paths: Iterable[Path]) -> str:
    """Return the digest of the file that the parts belong to. Raises PartsError if they belong to several."""
    found = {str(read_header(path)["whole"]) for path in paths}
    if len(found) != 1:
        raise PartsError(f"these are parts of {len(found)} kits")
    return found.pop()


def join(paths: Sequence[Path], whole: Path) -> None:
    """Put the parts together in any order. Raises PartsError, and leaves no file behind, unless every digest fits."""
    headers = {path: read_header(path) for path in paths}
    digest = whole_digest(paths)
    by_number = {int(header["part"]): path for path, header in headers.items()}
    count = int(next(iter(headers.values()))["of"])
    if missing := set(range(1, count + 1)) - by_number.keys():
        raise PartsError(f"of {count} parts, these are missing: {', '.join(map(str, sorted(missing)))}")
    try:
        with whole.open("wb") as target:
            for number in range(1, count + 1):
                append(by_number[number], headers[by_number[number]]["sha256"], target)
        if digest_of(whole) != digest:
            raise PartsError("the parts are intact, but the whole has another digest")
    except PartsError:
        whole.unlink(missing_ok=True)
        raise


def append(path: Path, digest: str, target: Any) -> None:
    """Append what a part carries. Raises PartsError if its digest is another."""
    state = hashlib.sha256()
    with path.open("rb") as source:
        source.readline(4096)
        while chunk := source.read(CHUNK):
            state.update(chunk)
            target.write(chunk)
    if state.hexdigest() != digest:
        raise PartsError(f"{path} was changed: its digest is {state.hexdigest()}")
