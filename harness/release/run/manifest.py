"""manifest.json: the digest of every file of a bundle. It shows whether a file was changed, added or removed.

The manifest does not prove who wrote the bundle. Sign it for that (docs/qualifying.md). `verify` also recomputes the
content that the manifest seals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coldproof.harness.schema.stored_files import MEGABYTE, UnreadableFile, opened, read_json
from coldproof.reports.exports.write import write_text
from coldproof.reports.files.own_folder import MARKER, SEAL

NAME = SEAL
SIGNATURES = (f"{NAME}.sig", f"{NAME}.asc")  # created after the manifest, in the same folder
ATTESTATION = "verdicts.intoto.json"  # created after the manifest too, which it names
AFTERWARDS = (NAME, ATTESTATION, *SIGNATURES, MARKER)  # what is written later than the manifest, or added to
FORMAT = 1
CHUNK = 2**20
MOST_MANIFEST = 64 * MEGABYTE


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file: its digest, its size, and the number of lines if it is an event log."""

    sha256: str
    bytes: int
    lines: int | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All files of a folder. Keys are paths relative to the folder, with slashes."""

    format: int = FORMAT
    files: dict[str, Entry]


def seal(folder: Path) -> None:
    """Write the manifest of a folder. Raises OSError, also for what is no regular file."""
    try:
        entries = {name: entry(folder / name) for name in sorted(sealed_files(folder))}
    except UnreadableFile as problem:
        raise OSError(f"{folder} cannot be sealed: of a file in it, {problem}") from problem
    raw = msgspec.json.encode(Manifest(files=entries), order="deterministic")
    write_text(folder / NAME, msgspec.json.format(raw, indent=1).decode() + "\n")


def sealed_files(folder: Path) -> Iterator[str]:
    """Yield the path of every file below a folder, except the manifest and what is created or grows after it."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if (path.is_file() or path.is_symlink()) and name not in AFTERWARDS:
            yield name


def entry(path: Path) -> Entry:
    """Return the entry of a file."""
    digest, size, lines = hashlib.sha256(), 0, 0
    with opened(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            lines += chunk.count(b"\n")
    return Entry(sha256=digest.hexdigest(), bytes=size, lines=lines if path.suffix == ".ndjson" else None)


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError, or UnreadableFile for what is no regular file."""
    return entry(path).sha256


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder. Raises OSError or msgspec.MsgspecError."""
    return read_json(folder / NAME, Manifest, most=MOST_MANIFEST)


def manifest_differences(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield one line for each file of a folder that differs from its manifest."""
    there = set(sealed_files(folder))
    for name in sorted(there - manifest.files.keys()):
        yield f"{name} is not in the manifest; it was added later"
    for name, sealed in sorted(manifest.files.items()):
        if name not in there:
            yield f"{name} is in the manifest but missing from the bundle"
        elif (folder / name).is_symlink():
            yield f"{name} is a symbolic link"
        elif (found := entry(folder / name)) != sealed:
            lines = f"; it has {found.lines} lines, the run wrote {sealed.lines}" if found.lines != sealed.lines else ""
            yield f"{name} was changed after the run{lines}"
