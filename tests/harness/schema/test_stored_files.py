"""Files from elsewhere are read within limits, and only if they are regular files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from coldproof.harness.schema import stored_files
from coldproof.harness.schema.stored_files import (
    MOST_DEPTH,
    UnreadableFile,
    check_depth,
    copy_folder,
    decode,
    decode_object,
    files_below,
    read_bytes,
    read_lines,
    read_toml,
)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    """A file with one byte more is refused."""
    (tmp_path / "a").write_bytes(b"1234")
    assert read_bytes(tmp_path / "a", most=4) == b"1234"
    with pytest.raises(UnreadableFile, match="more than"):
        read_bytes(tmp_path / "a", most=3)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "loop"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """A link is followed only if the user named it, and only to a file."""
    (tmp_path / "file").write_bytes(b"1")
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("file" if kind == "link" else "it")
    with pytest.raises(UnreadableFile):
        read_bytes(path)
    if kind == "link":
        assert read_bytes(path, follow=True) == b"1"
    else:
        with pytest.raises((UnreadableFile, OSError)):
            read_bytes(path, follow=True)


def test_a_line_and_their_number_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are read one by one, and the last one may have no line end."""
    (tmp_path / "log").write_bytes(b"one\ntwo\nlast")
    assert list(read_lines(tmp_path / "log")) == [b"one\n", b"two\n", b"last"]
    monkeypatch.setattr(stored_files, "MOST_LINES", 2)
    with pytest.raises(UnreadableFile, match="more than 2 lines"):
        list(read_lines(tmp_path / "log"))
    monkeypatch.setattr(stored_files, "MOST_LINE", 3)
    with pytest.raises(UnreadableFile, match="line 1 has more than"):
        list(read_lines(tmp_path / "log"))


@pytest.mark.parametrize(
    "raw",
    [
        b"NaN",
        b"[1e999]",
        b'"\xff"',
        b"[" * 5000 + b"]" * 5000,
        b"1" * 30,
        b"[" + b"9" * 6000 + b"]",
        b'"\x00"',
        b"",
        b"{",
    ],
)
def test_invalid_json_is_one_kind_of_error(raw: bytes) -> None:
    """Any invalid JSON raises a DecodeError."""
    with pytest.raises(stored_files.msgspec.DecodeError):
        decode(raw, Any)  # type: ignore[arg-type]


def test_a_digest_of_digits_is_no_number() -> None:
    """Digits in a string are text."""
    assert decode(b'{"sha": "12345678901234567890123", "n": 1234567890123456789}', dict) == {
        "sha": "12345678901234567890123",
        "n": 1234567890123456789,
    }


@pytest.mark.parametrize("number", [2**64 - 1, 2**63, -(2**63), 10**19])
def test_integers_have_64_bits(number: int) -> None:
    """Digests of an engine have 20 digits, signed or unsigned. Larger numbers could not be written again."""
    assert decode(b'{"n":%d}' % number, dict) == {"n": number}
    assert decode(b"[%d]" % number, list) == [number]


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**20, -(10**19)])
def test_larger_integers_are_refused(number: int) -> None:
    """They are refused before they become Python's numbers of any length."""
    for raw in (b"%d", b"[%d]", b'{"n": %d}', b"[0,%d]"):
        with pytest.raises(UnreadableFile):
            decode(raw % number, object)


def nested(depth: int) -> bytes:
    """Return an object with nested lists."""
    return b'{"a": ' + b"[" * depth + b"]" * depth + b"}"


def test_nesting_is_bounded() -> None:
    """The limit is lower than that of the decoder."""
    assert decode_object(nested(MOST_DEPTH - 1))
    with pytest.raises(UnreadableFile, match="nested too deeply"):
        decode_object(nested(MOST_DEPTH))
    check_depth([[], {}, "text"])


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = \xff", "a = " + "1" * 5000, "a =", "a = 1\na = 2"])
def test_invalid_toml_is_one_kind_of_error(tmp_path: Path, text: str) -> None:
    """Any invalid TOML raises an UnreadableFile."""
    (tmp_path / "a.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UnreadableFile):
        read_toml(tmp_path / "a.toml")


def test_folders_are_copied_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are copied in order into a new folder. Links and too many files are refused."""
    (tmp_path / "from" / "b").mkdir(parents=True)
    for name in ("b/2", "a", "b/1"):
        (tmp_path / "from" / name).write_text(name)
    assert [name.as_posix() for name in files_below(tmp_path / "from")] == ["a", "b/1", "b/2"]
    copy_folder(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "b" / "1").read_text() == "b/1"
    assert list(files_below(tmp_path / "nowhere")) == []
    monkeypatch.setattr(stored_files, "MOST_FILES", 3)
    with pytest.raises(UnreadableFile, match="more than 3 files"):
        list(files_below(tmp_path / "from"))
    monkeypatch.undo()
    (tmp_path / "from" / "c").symlink_to("a")
    with pytest.raises(UnreadableFile, match="c is a symbolic link"):
        copy_folder(tmp_path / "from", tmp_path / "again")
