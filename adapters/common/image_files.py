"""Image files without compression losses, written without an image library: a client needs none."""

from __future__ import annotations

import base64
import struct
import zlib

from coldproof.adapters.protocol.images import Encoding, numbers_and_colours

PNG_START = b"\x89PNG\r\n\x1a\n"
BMP_HEADER = struct.Struct("<2sIHHIIiiHHIIiiII")
CHANNELS = 3
TYPES = dict.fromkeys(Encoding, "png") | {Encoding.PIXELS: "x-portable-pixmap", Encoding.BMP: "bmp"}
RGB, INDEXED, RGBA = 2, 3, 6  # colour types of a PNG
HOLE, OPAQUE = b"\0\0\0\0", b"\xff"


def image_file(pixels: bytes, side: int, encoding: Encoding) -> bytes:
    """Return a square image as a file. `pixels`: row by row, three bytes each.

    For PIXELS, it is the format that is nearest to them: a header, and the pixels as they are.
    """
    match encoding:
        case Encoding.PNG:
            return png(pixels, side)
        case Encoding.BMP:
            return bmp(pixels, side)
        case Encoding.PALETTE:
            return indexed_png(pixels, side)
        case Encoding.TRANSPARENT:
            return png_with_a_hole(pixels, side)
    return b"P6 %d %d 255\n" % (side, side) + pixels


def image_in_base64(pixels: bytes, side: int, encoding: Encoding) -> str:
    """Return a square image as a file in base64, for a JSON body."""
    return base64.b64encode(image_file(pixels, side, encoding)).decode()


def rows(pixels: bytes, side: int) -> list[bytes]:
    """Return the rows of an image, from the top."""
    return [pixels[start : start + CHANNELS * side] for start in range(0, CHANNELS * side * side, CHANNELS * side)]


def png(pixels: bytes, side: int) -> bytes:
    """Return a PNG: 8 bits a channel."""
    return png_of(rows(pixels, side), RGB)


def indexed_png(pixels: bytes, side: int) -> bytes:
    """Return a PNG whose pixels are numbers of colours, with their table."""
    numbers, colours = numbers_and_colours(pixels)
    return png_of([numbers[start : start + side] for start in range(0, side * side, side)], INDEXED, colours)


def png_with_a_hole(pixels: bytes, side: int) -> bytes:
    """Return a PNG whose first pixel is transparent: what it was is not in the file."""
    others = (pixels[start : start + CHANNELS] + OPAQUE for start in range(CHANNELS, len(pixels), CHANNELS))
    seen = HOLE + b"".join(others)
    width = len(HOLE) * side
    return png_of([seen[start : start + width] for start in range(0, len(seen), width)], RGBA)


def png_of(lines: list[bytes], kind: int, colours: bytes = b"") -> bytes:
    """Return a square PNG with 8 bits for each number, and no filter before any row."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", len(lines), len(lines), 8, kind, 0, 0, 0)
    table = chunk(b"PLTE", colours) if colours else b""
    data = zlib.compress(b"".join(b"\0" + line for line in lines))
    return PNG_START + chunk(b"IHDR", header) + table + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bmp(pixels: bytes, side: int) -> bytes:
    """Return a BMP: from the bottom, blue first, and each row filled up to four bytes."""
    lines = [b"".join(row[i : i + CHANNELS][::-1] for i in range(0, len(row), CHANNELS)) for row in rows(pixels, side)]
    data = b"".join(line + bytes(-len(line) % 4) for line in reversed(lines))
    size = BMP_HEADER.size
    return BMP_HEADER.pack(b"BM", size + len(data), 0, 0, size, 40, side, side, 1, 24, 0, len(data), 0, 0, 0, 0) + data
