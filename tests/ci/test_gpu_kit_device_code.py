"""A library that was reduced to one kind of GPU has the code of that GPU at the same addresses, and no other code."""

import importlib
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

from support.paths import ROOT

sys.path.insert(0, str(ROOT / "ci" / "gpu_kit"))

import kit_device_code as cut

kit_wheels: Any = importlib.import_module("kit_wheels")

HOST = b"host code"
HOPPER, AMPERE, BLACKWELL = 90, 80, 120


def entry(gpu: int, code: bytes, *, kind: int = cut.MACHINE_CODE) -> bytes:
    """Return an entry of a fat binary, with a header of 64 bytes."""
    header = bytearray(64)
    cut.ENTRY.pack_into(header, 0, kind, 0, len(header), len(code))
    struct.pack_into("<I", header, cut.ARCHITECTURE, gpu)
    return bytes(header) + code


def fat(*entries: bytes) -> bytes:
    """Return a fat binary."""
    body = b"".join(entries)
    return cut.HEADER.pack(cut.MAGIC, 1, cut.HEADER.size, len(body)) + body


def library(*binaries: bytes) -> bytes:
    """Return an ELF file with the sections of host code, of device code and of names."""
    names = b"\0.text\0" + cut.SECTION + b"\0"
    code = (b"\0" * 8).join(binaries)
    parts = [HOST.ljust(16, b"\0"), code, names.ljust(24, b"\0")]
    starts = [64, 64 + len(parts[0]), 64 + len(parts[0]) + len(code)]
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", header, 0x28, starts[2] + len(parts[2]))
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)
    table = b"".join(
        struct.pack("<IIQQQQ", name, 1, 0, 0, start, len(part)).ljust(64, b"\0")
        for name, start, part in zip((1, 7, 0), starts, parts, strict=True)
    )
    return bytes(header) + b"".join(parts) + table


def kept(content: bytes) -> list[list[tuple[int, int, bytes]]]:
    """Return the kind, the GPU and the code of each entry of each fat binary."""
    found = cut.section(content)
    assert found is not None
    return [
        [(one.kind, one.gpu, content[one.code : one.end]) for one in binary.entries]
        for binary in cut.fat_binaries(content, *found)
    ]


def test_only_the_code_for_that_gpu_is_kept() -> None:
    mixed = fat(
        entry(AMPERE, b"A" * 16), entry(HOPPER, b"H" * 16), entry(HOPPER, b"I" * 8), entry(BLACKWELL, b"B" * 24)
    )
    cut_down = cut.only_for(library(mixed, fat(entry(HOPPER, b"J" * 8))), HOPPER)
    machine = cut.MACHINE_CODE
    assert kept(cut_down) == [
        [(machine, HOPPER, b"H" * 16), (machine, HOPPER, b"I" * 8)],
        [(machine, HOPPER, b"J" * 8)],
    ]


def test_all_addresses_and_the_host_code_stay() -> None:
    before = library(fat(entry(AMPERE, b"A" * 16), entry(HOPPER, b"H" * 8)), fat(entry(HOPPER, b"J" * 8)))
    after = cut.only_for(before, HOPPER)
    starts = [[one.start for one in cut.fat_binaries(text, *(cut.section(text) or (0, 0)))] for text in (before, after)]
    assert len(after) == len(before)
    assert starts[0] == starts[1]
    assert HOST in after
    assert b"A" not in after


def test_a_fat_binary_without_that_gpu_keeps_a_header_of_another_one_and_no_code() -> None:
    compiled_late = entry(AMPERE, b"ptx of 16 bytes.", kind=cut.PTX)
    cut_down = cut.only_for(library(fat(entry(BLACKWELL, b"B" * 24), compiled_late, entry(AMPERE, b"A" * 8))), HOPPER)
    assert kept(cut_down) == [[(cut.MACHINE_CODE, AMPERE, bytes(8))]]


def test_code_of_the_same_generation_stays_where_there_is_no_other() -> None:
    content = library(fat(entry(89, b"L" * 8)))
    assert cut.only_for(content, 86) == content


def test_a_file_without_device_code_is_no_cuda_library() -> None:
    assert cut.is_cuda_library(library(fat(entry(HOPPER, b"H" * 8))))
    assert not cut.is_cuda_library(b"text")
    assert not cut.is_cuda_library(b"PK\3\4" + bytes(100))


def test_the_libraries_of_a_slim_wheel_have_the_code_for_one_kind_of_gpu(tmp_path: Path) -> None:
    """Other files stay as they are."""
    before, text = library(fat(entry(AMPERE, b"A" * 16), entry(HOPPER, b"H" * 8))), b"print()"
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("a/kernels.so", before)
        wheel.writestr("a/text.py", text)
    kit_wheels.slim(tmp_path / "a-1-py3-none-any.whl", (), tmp_path / "slim.whl", gpu=HOPPER)
    with zipfile.ZipFile(tmp_path / "slim.whl") as wheel:
        assert wheel.read("a/kernels.so") == cut.only_for(before, HOPPER)
        assert wheel.read("a/text.py") == text
