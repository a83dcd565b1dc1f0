"""Leaves out of a CUDA library the code of all GPUs but one kind. The host code and all addresses stay as they are.

A library has its device code in the section `.nv_fatbin`: fat binaries, one behind the other, each with one entry for
each kind of GPU. The driver takes the entry for its GPU. Here, a fat binary keeps the entries for one kind and says
that it is as long as they are. One without such an entry keeps the header of another one, and its code becomes zeros:
a kernel that the GPU cannot run stays a kernel that it cannot run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SECTION = b".nv_fatbin"
MAGIC = 0xBA55ED50
HEADER = struct.Struct("<IHHQ")  # magic, version, its own size, size of the entries
ENTRY = struct.Struct("<HHIQ")  # kind, attributes, size of its header, size of its code
ARCHITECTURE = 28  # where an entry's header has the kind of GPU, such as 90 for Hopper
PTX, MACHINE_CODE = 1, 2


class Entry(NamedTuple):
    """The code for one kind of GPU: where its header begins, and where the code begins and ends."""

    kind: int
    gpu: int
    start: int
    code: int
    end: int


class FatBinary(NamedTuple):
    """One fat binary: where its header and its entries begin, and where they end."""

    start: int
    body: int
    end: int
    entries: tuple[Entry, ...]


def is_cuda_library(content: bytes) -> bool:
    """Return whether a file is a 64-bit ELF library with device code."""
    return content[:5] == b"\x7fELF\x02" and section(content) is not None


def only_for(content: bytes, gpu: int) -> bytes:
    """Return a library without the device code for other kinds of GPU than `gpu`, for example 90. It is as long as
    before, and compresses well. PTX, which a driver would compile, is left out too."""
    found = section(content)
    if found is None:
        return content
    kept = bytearray(content)
    for binary in fat_binaries(content, *found):
        entries = [one for one in binary.entries if one.kind == MACHINE_CODE and one.gpu == gpu]
        body = b"".join(content[one.start : one.end] for one in entries) or foreign(content, binary, gpu)
        kept[binary.body : binary.end] = body.ljust(binary.end - binary.body, b"\0")
        struct.pack_into("<Q", kept, binary.start + 8, len(body))
    return bytes(kept)


def foreign(content: bytes, binary: FatBinary, gpu: int) -> bytes:
    """Return the smallest entry of a fat binary that cannot run on that GPU, with zeros as its code."""
    others = [one for one in binary.entries if one.kind == MACHINE_CODE and one.gpu // 10 != gpu // 10]
    if not others:
        return content[binary.body : binary.end]
    least = min(others, key=lambda one: one.end - one.start)
    return content[least.start : least.code] + bytes(least.end - least.code)


def section(content: bytes) -> tuple[int, int] | None:
    """Return where the device code of an ELF file begins and ends; None for a file without any."""
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, names = struct.unpack_from("<HHH", content, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", content, table + number * size) for number in range(count)]
    if not headers:
        return None
    for name, _, _, _, offset, length in headers:
        at = headers[names][4] + name
        if content[at : at + len(SECTION) + 1] == SECTION + b"\0":
            return offset, offset + length
    return None


def fat_binaries(content: bytes, start: int, end: int) -> Iterator[FatBinary]:
    """Yield the fat binaries of a section. They are aligned to 8 bytes, with zeros between them."""
    while start < end:
        magic, _, own, size = HEADER.unpack_from(content, start)
        if magic != MAGIC:
            start += 8
            continue
        body = start + own
        yield FatBinary(start, body, body + size, tuple(entries_of(content, body, body + size)))
        start = body + size


def entries_of(content: bytes, start: int, end: int) -> Iterator[Entry]:
    """Yield the entries of a fat binary."""
    while start < end:
        kind, _, own, size = ENTRY.unpack_from(content, start)
        (gpu,) = struct.unpack_from("<I", content, start + ARCHITECTURE)
        yield Entry(kind, gpu, start, start + own, start + own + size)
        start += own + size
