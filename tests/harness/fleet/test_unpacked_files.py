"""An archive from a node is unpacked only if it has files and folders within limits."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from coldproof.harness.fleet import store
from coldproof.harness.fleet.store import unpack


def packed(*members: tarfile.TarInfo) -> bytes:
    """Return an archive with these members, with a few bytes in each file."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for member in members:
            member.size = 4 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"text"))
    return held.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """Return a member of an archive."""
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (member("cases/it", tarfile.SYMTYPE, "/etc/passwd"), "is not a regular file"),
        (member("cases/it", tarfile.SYMTYPE, "results.json"), "is not a regular file"),
        (member("cases/it", tarfile.LNKTYPE, "results.json"), "is not a regular file"),
        (member("it", tarfile.FIFOTYPE), "is not a regular file"),
        (member("it", tarfile.CHRTYPE), "is not a regular file"),
        (member("../it"), "cannot be unpacked"),
        (member("cases/../../it"), "cannot be unpacked"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused(tmp_path: Path, odd: tarfile.TarInfo, says: str) -> None:
    """Nothing is written outside the folder."""
    assert says in unpack(packed(member("results.json"), odd), tmp_path / "unit")
    assert [path.name for path in tmp_path.iterdir() if path.name != "unit"] == []


def test_files_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits on number and size are above those of a run. A file that is no archive is refused."""
    files = packed(member("results.json"), member("cases", tarfile.DIRTYPE), member("cases/a.json"))
    assert unpack(files, tmp_path / "unit") == ""
    assert (tmp_path / "unit" / "cases" / "a.json").read_text() == "text"
    assert "cannot be unpacked" in unpack(files[: len(files) // 2], tmp_path / "half")
    assert "cannot be unpacked" in unpack(b"text", tmp_path / "text")
    monkeypatch.setattr(store, "MOST_BYTES", 7)
    assert "more than" in unpack(files, tmp_path / "large")
    assert not (tmp_path / "large").exists()
