"""manifest.json: the digest of every file of a bundle, so that none can be changed, added or taken away unnoticed.

It proves nothing of who wrote it: for that it is signed, as any file is (docs/qualifying.md). What it seals is
recomputed by `verify` all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reports.write import write_text

NAME = "manifest.json"
SIGNATURES = (f"{NAME}.sig", f"{NAME}.asc")  # beside it, made after it
FORMAT = 1
CHUNK = 2**20


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file: what it holds, and how many lines where it is a log of events."""

    sha256: str
    bytes: int
    lines: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every file of a folder by its path in it, written with slashes."""

    format: int = FORMAT
    files: dict[str, Entry]


def seal(folder: Path) -> None:
    """Write the manifest of a folder as it is. Raises OSError."""
    entries = {name: entry(folder / name) for name in sorted(names(folder))}
    raw = msgspec.json.encode(Manifest(files=entries), order="deterministic")
    write_text(folder / NAME, msgspec.json.format(raw, indent=1).decode() + "\n")


def names(folder: Path) -> Iterator[str]:
    """Every file below a folder but the manifest and its signatures."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if (path.is_file() or path.is_symlink()) and name not in (NAME, *SIGNATURES):
            yield name


def entry(path: Path) -> Entry:
    """A file's entry."""
    digest, size, lines = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            lines += chunk.count(b"\n")
    return Entry(sha256=digest.hexdigest(), bytes=size, lines=lines if path.suffix == ".ndjson" else None)


def read_manifest(folder: Path) -> Manifest:
    """A folder's manifest. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)


def broken(folder: Path, manifest: Manifest) -> Iterator[str]:
    """What a folder holds otherwise than its manifest says, a line each."""
    there = set(names(folder))
    for name in sorted(there - manifest.files.keys()):
        yield f"{name} is not in the manifest: it was added"
    for name, sealed in sorted(manifest.files.items()):
        if name not in there:
            yield f"{name} is in the manifest and not in the bundle"
        elif (folder / name).is_symlink():
            yield f"{name} is a link"
        elif (found := entry(folder / name)) != sealed:
            counted = f": {found.lines} lines where the run wrote {sealed.lines}" if found.lines != sealed.lines else ""
            yield f"{name} is not as the run wrote it{counted}"
